"""Reports: what failed comes first, nothing is loaded from elsewhere, nothing is markup that a model wrote, no secret is shown."""

from __future__ import annotations

import csv
import io
import json
import math
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_ddtree.exactness.verdict import Verdict, VerdictKind
from pytest_ddtree.grid import CellKey
from pytest_ddtree.report import export, github, html, jsonreport, terminal
from pytest_ddtree.report.findings import Finding, Report, findings, of_builds
from pytest_ddtree.report.rows import GATE_HEAD, condition_rows, gate_rows
from pytest_ddtree.report.text import significant
from pytest_ddtree.results.fingerprint import Fingerprint
from pytest_ddtree.results.gates import Design, gate_cell
from pytest_ddtree.results.metrics import ACCEPT, TOK_S, TTFT_P90, Metric
from pytest_ddtree.results.model import CellFigures, Results, Round, StartInfo
from pytest_ddtree.results.runs import StoredRun
from pytest_ddtree.results.secrets import known_secrets
from pytest_ddtree.results.thresholds import judge_threshold, parse_threshold
from pytest_ddtree.results.tolerance import Tolerance

SECRET = "s3cr3t-0123456789"
EVIL = "<script>alert(1)</script> | `x` [a](http://evil) ::error::no\n%0A"


def a_verdict(config: str, kind: VerdictKind, *reasons: str) -> Verdict:
    return Verdict(
        kind=kind, level="full", config=config, prompts=4, identical=4, tokens=99, off=0, largest=0.0, gap_limit=1.0,
        floor_largest=0.0, floor_share=0.0, floor_tokens=99, p_share=1.0, reasons=reasons,
    )  # fmt: skip


def a_cell(config: str, rate: float) -> CellFigures:
    key = CellKey(60, 4)
    rounds = tuple(
        Round(
            config=config, key=key, number=number, requests=4, tokens=256, wall_s=256 / (rate + number), ttft_s=(0.02,),
            time_per_token_s=(0.002,), latency_s=(0.2,), verify_steps=None if config == "baseline" else 64,
            cached_tokens=0, decode_tok_s=None,
        )
        for number in range(4)
    )  # fmt: skip
    return CellFigures(config=config, key=key, rounds=rounds)


def a_gate(before: float, now: float, what: str = "b8-k4-wnone ctx60-c4") -> dict[str, Any]:
    noise = (1.0, 1.01, 0.99, 1.0)
    gate = gate_cell(
        what,
        TOK_S,
        dict.fromkeys(range(4), before),
        {number: now * noise[number] for number in range(4)},
        Tolerance(0.03, "same session"),
        Design(alpha=0.2),
    )
    assert gate is not None
    return gate.as_json()


def a_report(**changes: Any) -> Report:
    results = Results(
        starts=[StartInfo("baseline", None, 1.0), StartInfo("b8-k4-wnone", "rescore", 2.0)],
        verdicts={"b8-k4-wnone": [a_verdict("b8-k4-wnone", "exact")], "b16-k4-wnone": [a_verdict("b16-k4-wnone", "corrupt", EVIL)]},
        cells={
            ("baseline", CellKey(60, 4)): a_cell("baseline", 100.0),
            ("b8-k4-wnone", CellKey(60, 4)): a_cell("b8-k4-wnone", 150.0),
            ("b16-k4-wnone", CellKey(60, 4)): a_cell("b16-k4-wnone", 777.0),
        },
        gates=[a_gate(150.0, 150.0), a_gate(200.0, 150.0)],
        warnings=["the clock moved"],
    )  # fmt: skip
    prints = {
        "session": Fingerprint({"gpu.name": "NVIDIA H200", "gpu.count": 8, "engine.revision": "abc"}),
        "b8-k4-wnone": Fingerprint({"version": "0.5.20", "args": f"--api-key *** --note {EVIL}"}),
    }
    fields: dict[str, Any] = {
        "results": results,
        "started": "2026-01-01",
        "run": "20260101T0-1",
        "fingerprints": prints,
    }
    return Report(**{**fields, **changes})


def test_what_failed_comes_first_and_each_thing_once() -> None:
    found = findings(a_report().results)
    assert [one.weight for one in found] == ["failure", "failure", "warning"]
    assert found[0].title == "b16-k4-wnone is corrupt"
    assert found[1].title == "b8-k4-wnone ctx60-c4: tok_s regressed"
    results = a_report().results
    results.warnings += ["the clock moved", results.gates[1]["text"]]
    assert len(findings(results)) == 3


def test_a_failed_test_is_a_finding_unless_one_says_it_already() -> None:
    report = a_report()
    gate = report.results.gates[1]["text"]
    for nodeid, outcome, text in (
        ("bench/a.py::test_gate[x]", "failed", gate),
        (
            "bench/a.py::test_corrupt[x]",
            "failed",
            "AssertionError: b16-k4-wnone: corrupt at level full: 1 of 2",
        ),
        ("bench/a.py::test_both[x]", "failed", f"{gate}\nno expected figures"),
        ("bench/a.py::test_dead[x]", "error", "the server ended"),
        ("bench/a.py::test_dead[y]", "error", "the server ended"),
        ("bench/a.py::test_mended[x]", "failed", "slow"),
        ("bench/a.py::test_mended[x]", "passed", ""),
    ):
        report.results.note_test(nodeid, outcome, text)
    found = [(one.weight, one.title, one.text) for one in findings(report.results)[2:-1]]
    assert found == [
        ("failure", "test_both[x] failed", "no expected figures"),
        ("error", "test_dead[x] error, 1 more alike", "the server ended"),
    ]
    text = github.markdown(report)
    assert text.startswith("## ddtree: 2 regressions, 1 other failure, 1 error\n")
    assert (
        text.index("### Regressions")
        < text.index("### Failed")
        < text.index("### Errors")
        < text.index("### Und")
    )
    assert sum(line.startswith("::error") for line in github.commands(findings(report.results))) == 4


def test_what_could_not_be_judged_is_an_error_and_no_regression() -> None:
    """Principle: never the one for the other. The test says it in other words, so that it is there once."""
    results = Results(verdicts={"b8-k4-wnone": [a_verdict("b8-k4-wnone", "unknown", "too little")]})
    results.note_test(
        "bench/a.py::test_exact[x]", "error", "b8-k4-wnone: unknown, which is no pass: too little"
    )
    assert [(one.weight, one.title) for one in findings(results)] == [("error", "b8-k4-wnone is unknown")]
    assert github.markdown(Report(results)).startswith("## ddtree: 1 error\n\n### Errors: not judged")


def test_an_assertion_that_gives_the_sentence_of_a_gate_says_nothing_new(pytester: pytest.Pytester) -> None:
    """One regression is one annotation; pytest puts its own explanation around a message, as seen by a real one."""
    gate = a_report().results.gates[1]
    pytester.makeini("[pytest]\nasyncio_default_fixture_loop_scope = session\n")
    pytester.makepyfile(
        f"""
        import dataclasses, pytest

        @dataclasses.dataclass
        class Outcome:
            failures: tuple

        @pytest.mark.parametrize("more", ["", "the sandbox leaked"])
        def test_together(more):
            outcome = Outcome(({gate["text"]!r}, *filter(None, [more])))
            assert not outcome.failures, "\\n".join(outcome.failures)
        """
    )
    done = pytester.inline_run("-p", "no:cacheprovider")
    alone, both = [
        report.longrepr.reprcrash.message for report in done.getfailures() if report.when == "call"
    ]
    assert alone.startswith("AssertionError: ")
    assert "\nassert not (" in alone
    results = Results(gates=[gate])
    results.note_test("bench/test_together.py::test_together", "failed", alone)
    assert [one.title for one in findings(results)] == ["b8-k4-wnone ctx60-c4: tok_s regressed"]
    results.note_test("bench/test_together.py::test_together", "failed", both)
    assert [one.title for one in findings(results)][1:] == ["test_together failed"]
    assert findings(results)[1].text.startswith("the sandbox leaked\nassert not (")


def test_the_beginning_of_a_sentence_that_was_cut_says_nothing_new() -> None:
    one, other = a_gate(200.0, 150.0), a_gate(200.0, 140.0, "b16-k4-wnone ctx60-c4")
    results = Results(gates=[one, other])
    results.note_test("x::test_gate", "failed", f"{one['text']}\n{other['text'][:40]}")
    assert len(findings(results)) == 2
    results.note_test("x::test_gate", "failed", f"{one['text']}\nb16 is gone")
    assert len(findings(results)) == 3


def test_what_is_undecided_fails_where_that_was_asked() -> None:
    undecided = {**a_report().results.gates[0], "outcome": "undecided", "text": "who knows"}
    for strict, weight in ((False, "warning"), (True, "failure")):
        (found,) = findings(Results(gates=[undecided], strict=strict))
        assert (found.weight, found.text) == (weight, "who knows")


def test_a_threshold_is_shown_as_a_gate() -> None:
    threshold = parse_threshold("ttft_p90_ms <= 100 @ b8-k4")
    judged = judge_threshold(threshold, "b8-k4-wnone", CellKey(60, 4), {0: 199.0, 1: 200.0, 2: 201.0})
    results = Results(gates=[judged.as_json()])
    report = Report(results)
    assert "gates: 1 regressed" in "\n".join(terminal.lines(results))
    assert github.markdown(report).startswith("## ddtree: 1 regression\n")
    assert "| 200 | 100 | +100.0% | ttft\\_p90\\_ms &lt;= 100 @ b8-k4 |" in github.markdown(report)
    assert "ttft_p90_ms &lt;= 100 @ b8-k4" in html.page(report)
    value = json.loads(json.dumps(jsonreport.session_json(report), allow_nan=False))["gates"][0]
    assert value["low"] < value["loss"] < value["high"]
    assert value["loss"] == pytest.approx(0.5, abs=1e-3)
    one_round = judge_threshold(threshold, "b8-k4-wnone", CellKey(60, 4), {0: 50.0}).as_json()
    assert (one_round["outcome"], one_round["low"]) == ("fine", None)
    assert one_round["loss"] == pytest.approx(-1)


@pytest.mark.parametrize("metric", [TOK_S, TTFT_P90, ACCEPT], ids=str)
@given(change=st.floats(0.1, 9.0))
def test_a_table_of_gates_has_the_figures_of_its_sentences(metric: Metric, change: float) -> None:
    gate = gate_cell(
        "b8-k4-wnone ctx60-c4",
        metric,
        {0: 50.0, 1: 60.0},
        {0: 50.0 * change, 1: 61.0 * change},
        Tolerance(0.03, "same session"),
        Design(),
    )
    assert gate is not None
    (row,) = gate_rows(Results(gates=[gate.as_json()]))
    shown = dict(zip(GATE_HEAD, row, strict=True))
    assert f", {shown['change of the metric']}, " in str(gate)
    assert f"tolerance {shown['tolerance or threshold']}" in str(gate)
    assert float(shown["now"]) == pytest.approx(gate.now, rel=1e-3)
    assert float(shown["before"]) == pytest.approx(gate.before, rel=1e-3)


def test_a_config_on_two_builds_is_one_config() -> None:
    verdict = a_verdict("b8-k4-wnone", "exact")
    judged = [("base", "base", verdict), ("patched", "patched", verdict), ("patched", "base", verdict)]
    page = github.markdown(Report(of_builds(judged, [], [])))
    assert page.startswith("## ddtree: no corruption in 1 config\n")


def test_conditions_of_builds_name_the_build_only_where_they_differ() -> None:
    common = {"gpu.name": "NVIDIA H200", "engine.kind": "sglang"}
    prints = {
        "base:session": Fingerprint({**common, "engine.revision": "abc"}),
        "base:b8-k4-wnone": Fingerprint({"version": "0.5.20", "args": "--x"}),
        "patched:session": Fingerprint({**common, "engine.revision": "abd"}),
    }
    assert condition_rows(a_report(fingerprints=prints, results=Results())) == [
        ("run", "20260101T0-1"),
        ("started", "2026-01-01"),
        ("GPU", "NVIDIA H200"),
        ("engine", "sglang"),
        ("engine revision of build base", "abc"),
        ("engine revision of build patched", "abd"),
        ("server b8-k4-wnone of build base", "version 0.5.20; --x"),
    ]


def test_a_summary_shows_the_beginning_of_what_is_long() -> None:
    report = Report(Results())
    for number in range(50):
        report.results.note_test(
            f"a::t{number}", "error", "\n".join(f"{number} line {at}" for at in range(20))
        )
    text = github.markdown(report)
    assert "0 line 4<br>..." in text
    assert "line 5" not in text
    assert "- and 20 more" in text


def test_the_speed_of_wrong_answers_is_in_no_report() -> None:
    report = a_report()
    texts = [
        github.markdown(report),
        html.page(report),
        json.dumps(jsonreport.session_json(report)["cells"]),
        "\n".join(terminal.lines(report.results)),
    ]
    for text in texts:
        assert "777" not in text
        assert "778" not in text
    assert "151." in github.markdown(report)


def test_exports_hold_the_speedup_and_no_speed_of_wrong_answers() -> None:
    stored = StoredRun(path=Path("runs/one/results.jsonl"), results=a_report().results)
    rows = {row["config"]: row for row in csv.DictReader(io.StringIO(export.cells_csv(stored)))}
    assert (rows["baseline"]["speedup"], rows["b8-k4-wnone"]["speedup"]) == ("", "1.49266")
    assert float(rows["b8-k4-wnone"]["speedup_low"]) < 1.49 < float(rows["b8-k4-wnone"]["speedup_high"])
    corrupt = rows["b16-k4-wnone"]
    assert (corrupt["verdict"], corrupt["rounds"]) == ("corrupt", "4")
    assert {corrupt[name] for name in ("tok_s", "tok_s_low", "speedup", "ttft_p90_ms", "accept_length")} == {
        ""
    }
    cells = {cell["config"]: cell for cell in json.loads(export.as_json(stored))["cells"]}
    assert cells["baseline"]["speedup"] is None
    assert cells["b8-k4-wnone"]["speedup"]["value"] == pytest.approx(1.49266, rel=1e-5)
    assert "b16-k4-wnone" not in cells


def test_the_terminal_says_what_the_gates_say() -> None:
    text = "\n".join(terminal.lines(a_report().results))
    assert "gates: 1 regressed, 1 fine" in text
    assert "-25.0%" in text


class Tags(HTMLParser):
    """Collects tags and the addresses that they load."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.addresses: list[str] = []
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.addresses += [value or "" for name, value in attrs if name in ("src", "href", "action", "data")]
        if tag not in ("meta", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def parsed(page: str) -> Tags:
    tags = Tags()
    tags.feed(page)
    return tags


def test_the_page_holds_everything_and_runs_nothing() -> None:
    page = html.page(a_report())
    tags = parsed(page)
    assert not tags.open
    assert not {"script", "img", "link", "iframe", "a"} & set(tags.tags)
    assert tags.addresses == []
    assert "default-src 'none'" in page
    assert "url(" not in page
    for text in ("b8-k4-wnone", "NVIDIA H200", "To look at", "1.49x", "rescore"):
        assert text in page


@given(st.text(max_size=60))
def test_whatever_a_model_wrote_stays_text(text: str) -> None:
    results = Results(
        verdicts={text: [a_verdict(text, "corrupt", text)]}, warnings=[text], gates=[a_gate(2.0, 1.0, text)]
    )
    report = Report(results, text, text, {"session": Fingerprint({"gpu.name": text})})
    tags = parsed(html.page(report))
    assert not tags.open
    assert set(tags.tags) <= {
        "html", "head", "meta", "title", "style", "body", "h1", "h2", "p", "ul", "li", "strong", "div", "table", "thead", "tbody",
        "tr", "th", "td", "span",
    }  # fmt: skip
    markdown = github.markdown(report)
    assert "<script" not in markdown
    assert all(line.count("\n") == 0 for line in github.commands(findings(results)))


def test_the_summary_has_regressions_before_figures() -> None:
    text = github.markdown(a_report())
    assert text.startswith("## ddtree: 2 regressions")
    assert text.index("### Regressions") < text.index("### Undecided") < text.index("### Figures")
    assert "<script>" not in text
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert all(line.endswith("|") for line in rows)
    calm = Report(Results(cells={("baseline", CellKey(60, 4)): a_cell("baseline", 1.0)}))
    assert github.markdown(calm).startswith("## ddtree: no regression in 1 cell\n")
    exact = Report(Results(verdicts={"b8": [a_verdict("b8", "exact")], "b16": [a_verdict("b16", "tie")]}))
    assert github.markdown(exact).startswith("## ddtree: no corruption in 2 configs\n")
    fine = {**a_report().results.gates[0], "outcome": "fine", "text": "as before"}
    open_ = {**fine, "outcome": "undecided", "text": "who knows"}
    some = Report(Results(gates=[fine, open_, {**open_, "text": "nor this"}], warnings=["look"]))
    assert github.markdown(some).startswith("## ddtree: no regression in 1 gate, 2 undecided, 1 to look at\n")
    none = Report(Results(gates=[open_]))
    assert github.markdown(none).startswith("## ddtree: no gate decided, 1 undecided\n")
    nothing = Report(Results())
    assert github.markdown(nothing).startswith("## ddtree: nothing was measured or judged\n")
    assert "Nothing was measured or judged." in html.page(nothing)


def test_the_summary_goes_to_the_file_of_the_step_and_is_cut_where_github_cuts(tmp_path: Path) -> None:
    assert github.write_summary(a_report(), {}) is None
    path = tmp_path / "summary.md"
    path.write_text("before\n")
    assert github.write_summary(a_report(), {"GITHUB_STEP_SUMMARY": str(path)}) == path
    assert path.read_text().startswith("before\n## ddtree")
    many = a_report()
    many.results.warnings = [f"{number} " + "x" * 100_000 for number in range(20)]
    github.write_summary(many, {"GITHUB_STEP_SUMMARY": str(path)})
    assert path.stat().st_size < 1_000_000
    assert "too long" in path.read_text()


def test_annotations_are_one_line_each_and_cannot_be_forged() -> None:
    lines = github.commands([Finding("failure", "a: b, c", EVIL), Finding("warning", "w", "text\r\nmore")])
    assert lines[0].startswith("::error title=ddtree%3A a%3A b%2C c::<script>")
    assert lines[1] == "::warning title=ddtree%3A w::text%0D%0Amore"
    assert all("\n" not in line for line in lines)
    assert len(github.commands([Finding("failure", "t", str(n)) for n in range(50)])) == 10


def test_the_json_report_is_json_and_shows_no_secret() -> None:
    environment = {"CI": "true", "HF_TOKEN": SECRET, "OTHER": "not-listed"}
    report = {
        "environment": {"Python": "3.11", "BUILD_URL": f"https://u:{SECRET}@ci/", "HF_TOKEN": SECRET},
        "tests": [
            {
                "nodeid": "x",
                "call": {"longrepr": f"E  ServerDied: --api-key {SECRET}", "stdout": SECRET},
                "user_properties": [{"ddtree.config": "b8"}, {"ddtree.tok_s": "1"}],
            }
        ],
    }
    jsonreport.enrich(
        report, a_report(), secrets=known_secrets("key-of-the-server", environment), environment=environment
    )
    text = json.dumps(report, allow_nan=False)
    assert SECRET not in text
    assert "not-listed" not in text
    assert report["environment"] == {"Python": "3.11", "CI": "true"}
    assert report["tests"][0]["user_properties"] == {"ddtree.config": "b8", "ddtree.tok_s": "1"}  # type: ignore[index]
    assert report["ddtree"]["findings"][0]["weight"] == "failure"  # type: ignore[index]


def test_figures_that_json_does_not_have_become_null() -> None:
    figures = a_cell("baseline", 100.0)
    one = CellFigures(config="baseline", key=figures.key, rounds=figures.rounds[:1])
    value = jsonreport.cell_metadata(one)
    json.dumps(value, allow_nan=False)
    assert value["ddtree"]["figures"]["tok_s"]["low"] is None


def test_what_no_answer_has_is_a_dash_or_nothing_in_every_report() -> None:
    """Answers that come in one piece have no time per token."""
    figures = a_cell("b8-k4-wnone", 150.0)
    pieces = tuple(replace(one, time_per_token_s=(), ttft_s=()) for one in figures.rounds)
    results = Results(cells={("b8-k4-wnone", figures.key): replace(figures, rounds=pieces)})
    stored = StoredRun(path=Path("runs/one/results.jsonl"), results=results)
    (row,) = csv.DictReader(io.StringIO(export.cells_csv(stored)))
    assert (row["ttft_p50_ms"], row["ms_per_token_p90"]) == ("", "")
    properties = dict(jsonreport.properties(results.cells["b8-k4-wnone", figures.key]))
    assert "ddtree.ms_per_token_p90" not in properties
    assert properties["ddtree.rounds"] == "4"
    texts = ["\n".join(terminal.lines(results)), github.markdown(Report(results)), html.page(Report(results))]
    for text in texts:
        assert "nan" not in text
        assert "-/-" in text


@given(st.floats(1e-3, 1e7))
def test_a_figure_of_a_table_is_a_number_that_people_read(value: float) -> None:
    text = significant(value)
    assert "e" not in text
    assert float(text) == pytest.approx(value, rel=6e-4)


def test_properties_for_junit_name_their_units() -> None:
    found = dict(jsonreport.properties(a_cell("b8-k4-wnone", 150.0), [a_gate(200.0, 150.0)]))
    assert found["ddtree.gate.tok_s"] == "regressed"
    assert found["ddtree.accept_length"] == "4"
    assert math.isclose(float(found["ddtree.ttft_p90_ms"]), 20.0)
    assert all(isinstance(value, str) for value in found.values())


@pytest.mark.parametrize("secret", ["abc", ""])
def test_short_values_are_not_masked_everywhere(secret: str) -> None:
    assert known_secrets(secret, {"HF_TOKEN": secret}) == ()
