"""A/B of builds: what is undecided is called so, gets more passes, and never passes for unchanged."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from made import a_round

from pytest_ddtree.ab import Ab, unjudged
from pytest_ddtree.ab_outcome import AbOutcome
from pytest_ddtree.budget import Budget
from pytest_ddtree.errors import Infrastructure
from pytest_ddtree.grid import CellKey, Config
from pytest_ddtree.options import make_settings
from pytest_ddtree.report import compare_cli, github
from pytest_ddtree.report.comparison import lines
from pytest_ddtree.report.findings import Report
from pytest_ddtree.report.rows import gate_rows
from pytest_ddtree.results.builds import parse_builds
from pytest_ddtree.results.change import Comparison
from pytest_ddtree.results.gates import Outcome, decide
from pytest_ddtree.results.metrics import TOK_S
from pytest_ddtree.results.model import Results, Round
from pytest_ddtree.results.runs import cells_of, read_run, rebuild
from pytest_ddtree.results.store import Store, parse
from pytest_ddtree.results.taking_turns import AbDesign, in_turns, uneven_caches

CONFIG = "b8-k4-wnone"
ONE = (CellKey(60, 1),)
TWO = (CellKey(60, 1), CellKey(60, 2))
UNCHANGED = "nothing changed beyond noise"


def rounds_of(
    build: str, logs: Sequence[float], cells: Sequence[CellKey] = ONE, seed: int = 0
) -> list[Round]:
    """Rounds of tok/s alone that differ from 100 by these logarithms; all else is the same on every build."""
    return [
        a_round(number, 100 * math.exp(log), key=key, build=build, start_no=number // 2)
        for key in cells
        for number, log in enumerate(logs)
    ]


def results_of(build: str, logs: Sequence[float], cells: Sequence[CellKey] = ONE) -> Results:
    return Results(cells=cells_of(rounds_of(build, logs, cells)))


def design(cells: Sequence[CellKey] = ONE, *, passes: int = 2, rounds: int = 2) -> AbDesign:
    headline = tuple((CONFIG, key) for key in cells[:1])
    return AbDesign(rounds=rounds, passes=passes, alpha=0.001, configs=1, headline=headline)


def compared(
    logs: Sequence[float], cells: Sequence[CellKey] = ONE, *, rounds: int = 2, passes: int = 2
) -> Comparison:
    """A base without noise, and a build with these logarithms."""
    base, patched = results_of("base", [0.0] * len(logs), cells), results_of("patched", logs, cells)
    return design(cells, rounds=rounds).compare(
        base, patched, config=CONFIG, names=("base", "patched"), passes=(passes, passes)
    )


def alternating(mean: float, spread: float, n: int) -> list[float]:
    return [mean + (spread if number % 4 in (0, 3) else -spread) for number in range(n)]


HALF_LOST = alternating(math.log(0.506), 0.11, 4)
"""Four rounds of a build at half of the speed, so uneven that no interval at this level excludes that it is as fast."""


def test_half_of_the_speed_lost_in_four_rounds_is_undecided_and_never_unchanged() -> None:
    comparison = compared(HALF_LOST)
    assert [change.metric for change in comparison.undecided] == [TOK_S]
    text = "\n".join(lines(comparison))
    assert UNCHANGED not in text
    assert f"undecided: {CONFIG} ctx60-c1: tok_s" in text
    assert "or more would have been found" in text


def test_a_single_cell_is_judged_at_the_level_of_all_cells_together_too() -> None:
    (lone,) = [change for change in compared(HALF_LOST).changes if change.metric is TOK_S]
    of_two = compared(HALF_LOST, TWO).changes
    assert of_two[0].key is None
    pairs = len([change for change in of_two if change.key is not None]) // 2
    # Four looks, and half of each for the pooled test, which here is this cell's own.
    half = 0.001 / 4 / 2
    assert lone.alpha == pytest.approx(half + half / pairs)
    assert of_two[0].alpha == pytest.approx(half)
    for changes in (of_two, compared(HALF_LOST).changes):
        assert math.fsum(change.alpha for change in changes) <= 0.001 / 4 * (1 + 1e-9)


def test_one_round_a_cell_is_undecided_for_all_cells_together() -> None:
    comparison = compared([0.0], TWO)
    assert comparison.changes[0].key is None
    assert comparison.changes[0].outcome == "undecided"
    assert UNCHANGED not in "\n".join(lines(comparison))


def test_a_cell_that_is_no_headline_is_reported_and_not_judged() -> None:
    outcomes = {
        (change.key, change.metric.name): change.outcome for change in compared(HALF_LOST, TWO).changes
    }
    assert outcomes[TWO[0], "tok_s"] == "undecided"
    assert outcomes[TWO[1], "tok_s"] == "no change seen"


@given(
    logs=st.lists(st.floats(-0.3, 0.3), min_size=1, max_size=12),
    cells=st.sampled_from([ONE, TWO]),
)
def test_unchanged_is_said_only_where_every_judged_loss_is_excluded(
    logs: list[float], cells: tuple[CellKey, ...]
) -> None:
    comparison = compared(logs, cells)
    said: dict[str, Outcome] = {"worse": "regressed", "undecided": "undecided", "fine": "fine"}
    judged = [change for change in comparison.changes if change.judged]
    assert judged
    for change in judged:
        if change.outcome in said:
            found = decide(change.loss, change.tolerance.share, change.alpha)
            # Stays that do not show by themselves what their rounds show leave it undecided.
            doubted = found == "regressed" and change.stays is not None and change.outcome == "undecided"
            assert said[change.outcome] == found or doubted
        assert change.gate("base").outcome in (said.get(change.outcome), "fine")
    text = lines(comparison)
    assert (UNCHANGED in text) == (
        all(change.outcome == "fine" for change in judged) and not comparison.beyond_noise
    )
    assert bool(comparison.undecided) == any(line.startswith("undecided: ") for line in text)
    # Every loss of tok/s of a lone cell that is named had an interval beyond its tolerance.
    for change in comparison.beyond_noise:
        assert change.loss.n > 1


class Turns:
    """Passes over builds of which one loses `lost`; each pass has four more rounds with noise of `spread`."""

    def __init__(self, lost: float, spread: float, seed: int = 1) -> None:
        generator = random.Random(seed)
        self.asked: list[int] = []
        self._logs = [math.log1p(-lost) + generator.gauss(0, spread) for _ in range(64)]

    def __call__(self, passes: int) -> tuple[Comparison, ...]:
        self.asked.append(passes)
        return (compared(self._logs[: 4 * passes], rounds=4, passes=passes),)


def test_passes_are_added_until_half_of_the_speed_is_found_lost() -> None:
    turns, said = Turns(0.3, 0.15), list[str]()
    (comparison,), stopped = in_turns(design(), turns, say=said.append)
    assert comparison.changes[0].outcome == "worse"
    assert turns.asked[0] == 2 < turns.asked[-1]
    assert not stopped
    assert len(said) == len(turns.asked) - 1
    assert said[0] == f"undecided: {CONFIG} ctx60-c1 tok_s; 2 more passes"


@pytest.mark.parametrize("passes", [2, 4])
def test_passes_end_at_four_times_what_was_asked_and_it_is_said(passes: int) -> None:
    turns = Turns(0.0, 0.9)
    (comparison,), stopped = in_turns(design(passes=passes), turns)
    assert turns.asked == [passes, 2 * passes, 3 * passes, 4 * passes]
    assert comparison.undecided
    assert stopped.startswith(f"no more passes: {4 * passes} are 4 times")


def test_unchanged_builds_on_a_quiet_machine_need_no_more_passes() -> None:
    turns = Turns(0.0, 0.001)
    (comparison,), stopped = in_turns(design(), turns)
    assert turns.asked == [2]
    assert comparison.unchanged
    assert not stopped


def test_no_pass_is_added_where_there_is_no_time() -> None:
    turns = Turns(0.0, 0.3)
    found, stopped = in_turns(design(), turns, no_time=lambda passes: f"{passes} passes have no time")
    assert turns.asked == [2]
    assert found[0].undecided
    assert stopped == "2 passes have no time"


def test_the_time_budget_decides_whether_there_are_more_passes(tmp_path: Path) -> None:
    now = [0.0]
    settings = make_settings({"results": (str(tmp_path), "test")})
    specs = parse_builds(["base=args:", "patched=args:--x"], None)
    ab = Ab(
        settings, specs, (Config("tree", 8, 4),), ONE, passes=2, progress=print,
        budget=Budget(60.0, clock=lambda: now[0]),
    )  # fmt: skip
    ab._longest_stay_s = 10.0
    assert ab._no_time(2, builds=2) == ""
    now[0] = 30.0
    text = "no more passes: 2 more take about 40 s, --ddtree-time-budget leaves 30 s"
    assert ab._no_time(2, builds=2) == text


def test_time_for_more_passes_is_that_of_the_builds_still_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A corrupt build has no further stay: it must not make the others look as if there were no time for them."""
    settings = make_settings({"results": (str(tmp_path), "test")})
    specs = parse_builds(["base=args:", "corrupt=args:--x", "patched=args:--y"], None)
    ab = Ab(
        settings, specs, (Config("tree", 8, 4),), ONE, passes=2, progress=print,
        budget=Budget(50.0, clock=lambda: 0.0),
    )  # fmt: skip
    made: list[int] = []

    def take_turns(config: Config, passes: int, judged: object, out_of_it: set[str]) -> None:
        made.append(passes)
        out_of_it.add("corrupt")
        ab._longest_stay_s = 10.0

    monkeypatch.setattr(ab, "_ask_the_others", lambda config: None)
    monkeypatch.setattr(ab, "_take_turns", take_turns)
    monkeypatch.setattr(ab, "_compare", lambda *_: (compared(HALF_LOST),))
    ab._outcome(Config("tree", 8, 4))
    ab.close()
    assert made == [2, 4, 6, 8]


def test_a_build_that_does_not_say_what_it_takes_is_named_before_another_starts(tmp_path: Path) -> None:
    healthy = Path(__file__).parents[1] / "servers" / "fake"
    broken = tmp_path / "broken"
    (broken / "sglang").mkdir(parents=True)
    (broken / "sglang" / "__init__.py").write_text("raise ImportError('no such kernel')\n")
    settings = make_settings(
        {
            "results": (str(tmp_path / "r"), "test"),
            "server": ("sglang", "test"),
            "model": ("/models/t", "test"),
            "draft_model": ("/models/d", "test"),
        }
    )
    specs = parse_builds([f"base={healthy}", f"patched={broken}"], None)
    config = Config("tree", 8, 4)
    ab = Ab(settings, specs, (config,), ONE, passes=2, progress=print)
    try:
        with pytest.raises(Infrastructure, match="build patched: StartFailed") as caught:
            ab.outcome(config)
    finally:
        ab.close()
    assert "no such kernel" in str(caught.value)
    assert not list((tmp_path / "r").rglob("baseline*.log"))


def report_of(outcome: AbOutcome) -> Report:
    """As the session and every reader of its record make it."""
    records: list[dict[str, Any]] = [
        {"kind": "run", "plugin": "x", "started": "2026-11-30", "settings": {"strict": outcome.strict}},
        {"kind": "ab", "builds": ["base", "patched"], **design().as_json(), "ends": True},
        {"kind": "round", "round": a_round(0, 100.0, build="base").as_json()},
        *({"kind": kind, **fields} for kind, fields in outcome.records),
    ]
    text = "\n".join(json.dumps({"schema": 2, **record}) for record in records)
    path = Path("20260101T0-1-ab") / "results.jsonl"
    return Report.of(rebuild(parse(f"{text}\n".encode(), str(path)), path))


def test_a_failed_test_that_the_disk_did_not_take_is_reported_all_the_same(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    settings = make_settings({"results": (str(tmp_path / "file" / "below"), "test")})
    specs = parse_builds(["base=args:", "patched=args:--x"], None)
    ab = Ab(settings, specs, (Config("tree", 8, 4),), ONE, passes=2, progress=print)
    assert not ab.begun
    ab.note_test("bench/test_builds.py::test_builds[b8-k4-wnone]", "error", "no space left")
    assert ab.begun
    assert "1 error" in github.markdown(ab.report()).splitlines()[0]
    assert "no space left" in github.markdown(ab.report())


def test_undecided_is_a_warning_and_with_strict_a_failure() -> None:
    outcome = AbOutcome(CONFIG, (), (compared(HALF_LOST),), stopped="no more passes")
    assert outcome.failures == ()
    (warning,) = outcome.warnings
    assert warning.startswith(f"build patched against base: {CONFIG}: undecided: ")
    strict = AbOutcome(CONFIG, (), outcome.comparisons, strict=True)
    assert strict.failures == (warning,)
    assert strict.warnings == ()
    assert ("ddtree.build.patched", "undecided") in outcome.properties
    assert ("ddtree.undecided", warning) in outcome.properties


def test_github_and_json_reports_say_what_is_undecided() -> None:
    outcome = AbOutcome(CONFIG, (), (compared(HALF_LOST),))
    page = github.markdown(report_of(outcome))
    assert "undecided" in page.splitlines()[0]
    assert f"build patched, {CONFIG} ctx60-c1: tok\\_s undecided" in page
    assert "or more would have been found" in page


@pytest.mark.parametrize("recorded", [True, False])
def test_the_record_says_the_same_as_the_session(
    tmp_path: Path, recorded: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "20260101T0-1-ab"
    fields = design().as_json() if recorded else {"passes": 2, "rounds": 2}
    with Store(folder / "results.jsonl") as store:
        store.append("run", plugin="x", started="2026-01-01", settings={})
        store.append("ab", builds=["base", "patched"], **fields)
        for one in (*rounds_of("base", [0.0] * 4), *rounds_of("patched", HALF_LOST)):
            store.append("round", round=one.as_json())
    assert compare_cli.run([str(folder)]) == 0
    assert capsys.readouterr().out.splitlines()[:-1] == lines(compared(HALF_LOST))
    assert compare_cli.run([str(folder), "--json"]) == 0
    assert '"outcome": "undecided"' in capsys.readouterr().out


@pytest.mark.parametrize(("rounds", "confirmed"), [(4, False), (7, False), (8, True)])
def test_whole_passes_of_the_record_confirm_whatever_their_starts_are_called(
    tmp_path: Path, rounds: int, confirmed: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    logs = alternating(-0.3, 0.001, rounds)
    with Store(tmp_path / "results.jsonl") as store:
        store.append("run", plugin="x", started="2026-01-01", settings={})
        store.append("ab", builds=["base", "patched"], **design(TWO).as_json())
        for one in (*rounds_of("base", [0.0] * 8, TWO), *rounds_of("patched", logs, TWO)):
            store.append("round", round={**one.as_json(), "start_no": 1})
    assert compare_cli.run([str(tmp_path / "results.jsonl"), "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["confirmed"] is confirmed


@pytest.mark.parametrize("end", ["whole", "error", "interrupted"])
def test_a_comparison_that_did_not_end_is_told_of_and_is_no_pass(
    tmp_path: Path, end: str, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = end == "whole"
    path = tmp_path / "20260101T0-1-ab" / "results.jsonl"
    with Store(path) as store:
        store.append("run", plugin="x", started="2026-01-01", settings={})
        store.append("ab", builds=["base", "patched"], **design().as_json(), ends=True)
        for one in (*rounds_of("base", [0.0] * 4), *rounds_of("patched", [0.0] * 4)):
            store.append("round", round=one.as_json())
        if whole:
            store.append("compared", config=CONFIG)
        if end == "error":
            store.append(
                "test", nodeid="a.py::test_builds[x]", outcome="error", text="the server ended\nat once"
            )
    said = f"{CONFIG}: not finished; `pytest-ddtree compare {path.parent}` compares what was measured"
    assert (said in Report.of(read_run(path)).results.warnings) is not whole
    assert compare_cli.run([str(path)]) == (0 if whole else 2)
    printed = capsys.readouterr()
    assert (said in printed.out) is not whole
    assert printed.err == ("error: test_builds[x]: the server ended\n" if end == "error" else "")


def test_a_comparison_of_which_one_build_was_measured_has_no_second_run_to_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Store(tmp_path / "results.jsonl") as store:
        store.append("run", plugin="x", started="2026-01-01", settings={})
        store.append("ab", builds=["base", "patched"], **design().as_json())
        for one in rounds_of("base", [0.0] * 4):
            store.append("round", round=one.as_json())
    assert compare_cli.run([str(tmp_path / "results.jsonl")]) == 2
    assert "ended before two of them were measured" in capsys.readouterr().err


def test_every_report_shows_the_interval_that_says_less() -> None:
    # One stay of twelve is disturbed: the trimmed mean of the stays is not that of the rounds.
    of_stays = [-0.25 + 0.02 * (-1) ** stay - 0.3 * (stay == 5) for stay in range(12)]
    found = compared([stay + step for stay in of_stays for step in (0.0, 0.001)], TWO, passes=12)
    for change in found.changes:
        gate = change.gate("base")
        assert change.shown == gate.loss
        assert change.as_json()["n"] == gate.as_json()["n"]
        (row,) = gate_rows(Results(gates=[gate.as_json()]))
        assert f", {row[5]}, 95% interval" in str(gate)
        _, low, high = change.ratio
        if change.metric is TOK_S:
            assert change.stays is None or change.shown.error >= change.loss.error
            assert 1 - gate.as_json()["high"] == pytest.approx(low)
            assert 1 - gate.as_json()["low"] == pytest.approx(high)


def test_how_quiet_the_machine_was_is_in_every_report() -> None:
    restless = replace(compared([0.0] * 8, TWO, passes=4), unrest=0.4)
    outcome = AbOutcome(CONFIG, (), (restless,))
    (note,) = outcome.notes
    assert note.startswith(f"{CONFIG}, patched / base: the machine was not quiet: ")
    assert note in report_of(outcome).results.warnings
    assert ("ddtree.unrest", "0.400") in outcome.properties


def test_thresholds_and_expected_figures_are_said_not_to_be_judged() -> None:
    assert unjudged(make_settings({})) == ()
    asked = make_settings({"gates": ("tok_s >= 1", "test"), "expected": ("/x", "test")})
    assert unjudged(asked) == (
        "not judged in a comparison of builds: expected figures (--ddtree-expected) and thresholds (tok_s >= 1)",
    )


def test_the_design_is_read_back_as_it_was_written() -> None:
    written = design(TWO)
    assert AbDesign.from_json(written.as_json(), {}) == written


def test_what_the_first_passes_show_is_confirmed_by_as_many_more() -> None:
    turns, said = Turns(0.3, 0.01), list[str]()
    (comparison,), stopped = in_turns(design(), turns, say=said.append)
    assert comparison.changes[0].outcome == "worse"
    assert turns.asked == [2, 4]
    assert said == [f"to be confirmed: {CONFIG} ctx60-c1 tok_s; 2 more passes"]
    assert not stopped


def worse_outcome(passes: int, *, strict: bool = False) -> AbOutcome:
    comparison = Turns(0.3, 0.01)(passes)[0]
    return AbOutcome(CONFIG, (), (comparison,), strict, stopped="no more passes: no time")


@pytest.mark.parametrize("strict", [False, True])
def test_what_is_not_confirmed_is_neither_a_verdict_nor_a_pass(strict: bool) -> None:
    outcome = worse_outcome(2, strict=strict)
    (text,) = outcome.unconfirmed
    assert outcome.failures == ((text,) if strict else ())
    assert text.startswith("build patched looks worse than base, which is not confirmed: ")
    assert text.endswith("; no more passes: no time")
    assert "; not confirmed by further passes" in "\n".join(outcome.lines())
    assert ("ddtree.build.patched", "not confirmed") in outcome.properties
    assert "regressed" not in {gate.outcome for _, gate in outcome.gates}
    (gate,) = [gate for _, gate in outcome.gates if gate.unconfirmed]
    assert str(gate).endswith("; looks worse, not confirmed by further passes")
    told = [text for name, text in outcome.properties if name == "ddtree.undecided"]
    assert len(told) == sum(gate.outcome == "undecided" for _, gate in outcome.gates)
    page = github.markdown(report_of(outcome))
    assert ("1 regression" if strict else "undecided") in page.splitlines()[0]


def test_what_further_passes_show_too_is_a_verdict() -> None:
    outcome = worse_outcome(4)
    assert outcome.failures
    assert outcome.unconfirmed == ()
    assert "not confirmed" not in "\n".join(outcome.lines())
    assert ("ddtree.build.patched", "worse") in outcome.properties
    assert "regressed" in {gate.outcome for _, gate in outcome.gates}


def test_stays_that_agree_by_luck_blame_nobody() -> None:
    # Rounds that agree closely inside stays, and four stays that differ by too little to be called unrest.
    logs = [shift + spread for shift in (-0.06, -0.05, -0.10, -0.07) for spread in (0.02, -0.02) * 2]
    comparison = compared(logs, rounds=4)
    (lone,) = [change for change in comparison.changes if change.metric is TOK_S]
    assert comparison.unrest is None
    assert lone.loss.at_least(lone.alpha) > 0.0305
    assert lone.stays is not None
    assert lone.stays.at_least(0.005) < 0.03
    assert lone.outcome == "undecided"


@pytest.mark.parametrize("stay_noise", [0.0, 0.03, 0.10])
def test_unchanged_builds_are_not_blamed_however_much_each_stay_moves(stay_noise: float) -> None:
    for seed in range(25):
        generator = random.Random(seed)
        stays = [generator.gauss(0, stay_noise) for _ in range(8)]
        logs = [stay + generator.gauss(0, 0.03) for stay in stays for _ in range(2)]

        def made(passes: int, logs: Sequence[float] = logs) -> tuple[Comparison, ...]:
            return (compared(logs[: 2 * passes]),)

        (comparison,), _ = in_turns(design(), made)
        assert comparison.beyond_noise == ()


@pytest.mark.parametrize(
    ("tokens", "sizes"),
    [
        ({"base": 200_000, "patched": 120_000}, "base 200000, patched 120000"),
        ({"base": 1000, "patched": 1051}, "base 1000, patched 1051"),
        ({"base": 1000, "patched": 1050}, ""),
        ({"base": 1000, "patched": None}, ""),
        ({"base": None, "patched": None}, ""),
        ({}, ""),
    ],
)
def test_caches_of_different_sizes_are_said(tokens: dict[str, int | None], sizes: str) -> None:
    said = uneven_caches(tokens)
    assert bool(said) == bool(sizes)
    assert not sizes or f"({sizes})" in said
