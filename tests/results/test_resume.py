"""Resuming: nothing is lost to a SIGKILL or a torn line, nothing is measured twice, and nothing goes on under other conditions."""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import killed_sweep
import pytest
from made import KEY, a_round

from pytest_ddtree.exactness.verdict import Level, Verdict, VerdictKind
from pytest_ddtree.grid import CellKey, make_grid
from pytest_ddtree.options import make_settings, settings_json
from pytest_ddtree.plan import Plan
from pytest_ddtree.report import compare_cli
from pytest_ddtree.report.terminal import lines
from pytest_ddtree.results.expected import DRIFT
from pytest_ddtree.results.fingerprint import Fingerprint
from pytest_ddtree.results.gates import Design, gate_cell, gate_pooled
from pytest_ddtree.results.metrics import TOK_S
from pytest_ddtree.results.model import Round, key_json
from pytest_ddtree.results.resume import Resumed, ResumeRefused
from pytest_ddtree.results.runs import read_run
from pytest_ddtree.results.store import Store
from pytest_ddtree.results.tolerance import Tolerance
from pytest_ddtree.resuming import Recall

CONFIG = "b8-k4-wnone"
OTHER = CellKey(60, 32)


def a_verdict(kind: VerdictKind, level: Level = "full") -> Verdict:
    return Verdict(
        kind=kind, level=level, config=CONFIG, prompts=1, identical=1, tokens=9, off=0, largest=0.0,
        gap_limit=1.0, floor_largest=0.0, floor_share=0.0, floor_tokens=9, p_share=1.0,
    )  # fmt: skip


@pytest.mark.parametrize("kills", [20, pytest.param(200, marks=pytest.mark.slow)])
def test_a_sweep_killed_at_random_moments_ends_with_every_round_once(tmp_path: Path, kills: int) -> None:
    under_fire, calm = tmp_path / "killed" / "results.jsonl", tmp_path / "calm" / "results.jsonl"
    done = subprocess.run(
        [sys.executable, killed_sweep.__file__, str(under_fire), str(kills), "1"],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    killed_sweep.sweep(calm, killed_sweep.rounds_for(kills))
    one, other = read_run(under_fire), read_run(calm)
    assert lines(one.results) == lines(other.results)
    assert one.rounds == other.rounds


def test_a_run_cut_at_every_byte_of_its_last_round_goes_on_with_that_round(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    with Store(path) as store:
        store.append("run", plugin="x", started="now", settings={})
        store.append("round", round=a_round(0).as_json())
        keep = path.stat().st_size
        store.append("round", round=a_round(1).as_json())
    data = path.read_bytes()
    for cut in range(keep, len(data)):
        path.write_bytes(data[:cut])
        run = read_run(path)
        assert run.torn == cut - keep
        assert [one.number for one in Resumed(run).rounds(CONFIG, KEY)] == [0]
        assert ("count for nothing" in Resumed(run).summary()) == (cut > keep)
        with Store(path) as store:
            store.append("round", round=a_round(1).as_json())
        assert path.read_bytes() == data


def test_a_repeat_that_looks_for_drift_is_no_measured_round(tmp_path: Path) -> None:
    records = [("round", {"round": a_round(0, again=again).as_json()}) for again in (1, 0, 2)]
    assert sessions(tmp_path, ({}, records)).rounds(CONFIG, KEY) == (a_round(0),)


def stored(tmp_path: Path, *, session: dict[str, str] | None = None) -> Resumed:
    path = tmp_path / "20260101T000000Z-1" / "results.jsonl"
    with Store(path) as store:
        store.append("run", plugin="x", started="now", settings={})
        if session is not None:
            store.append("fingerprint", scope="session", fingerprint=session)
        store.append("fingerprint", scope=CONFIG, fingerprint={"args": "--tp 8"})
        store.append("mismatches", config=CONFIG, mismatches=[])
        store.append("verdict", verdict=a_verdict("exact").as_json())
        store.append("round", round=a_round(0).as_json())
    return Resumed(read_run(path))


def test_other_conditions_refuse_to_resume_and_are_all_named(tmp_path: Path) -> None:
    resumed = stored(tmp_path, session={"gpu.driver": "570.1", "engine.revision": "abc", "date": "1"})
    resumed.check("session", Fingerprint({"gpu.driver": "570.1", "engine.revision": "abc", "date": "2"}))
    with pytest.raises(ResumeRefused) as caught:
        resumed.check("session", Fingerprint({"gpu.driver": "575.2", "engine.revision": "def", "date": "2"}))
    text = str(caught.value)
    assert "gpu.driver: was 570.1, is 575.2" in text
    assert "engine.revision: was abc, is def" in text
    assert "date" not in text
    with pytest.raises(ResumeRefused, match=f"the server of {CONFIG}"):
        resumed.check(CONFIG, Fingerprint({"args": "--tp 4"}))
    resumed.check("b16-k4-wnone", Fingerprint({"args": "--tp 4"}))


def test_the_options_behind_a_digest_are_named_too(tmp_path: Path) -> None:
    path = tmp_path / "20260101T000000Z-1" / "results.jsonl"
    with Store(path) as store:
        store.append("run", plugin="x", started="now", settings={"output": 16, "seed": 0, "thinking": "on"})
        store.append("fingerprint", scope="session", fingerprint={"workload.digest": "a", "workload.seed": 0})
    now = Fingerprint({"workload.digest": "b", "workload.seed": 0})
    with pytest.raises(ResumeRefused) as caught:
        Resumed(read_run(path)).check("session", now, {"output": 32, "seed": 0, "thinking": "on"})
    assert "\n  --ddtree-output: was 16, is 32\n" in str(caught.value)
    assert "--ddtree-seed" not in str(caught.value)


def test_a_run_that_died_before_it_measured_anything_can_be_resumed(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    path.write_bytes(b"")
    Resumed(read_run(path)).check("session", Fingerprint({"engine.revision": "abc"}))


def test_a_run_without_a_fingerprint_cannot_be_resumed(tmp_path: Path) -> None:
    with pytest.raises(ResumeRefused, match="no fingerprint"):
        stored(tmp_path).check("session", Fingerprint({}))


def a_comparison(path: Path, *builds: str) -> Resumed:
    """One that was interrupted when so many builds had a round."""
    with Store(path) as store:
        store.append("run", plugin="x", started="now", settings={"build": ["base=args:", "patched=args:"]})
        store.append("ab", builds=["base", "patched"], passes=2, rounds=2)
        for build in builds:
            store.append("fingerprint", build=build, scope="session", fingerprint={"gpu.name": "H200"})
            store.append("round", build=build, round={**a_round(0).as_json(), "build": build})
    return Resumed(read_run(path))


def test_a_comparison_of_builds_is_refused_with_the_command_that_compares_it(tmp_path: Path) -> None:
    path = tmp_path / "20260101T000000Z-1-ab" / "results.jsonl"
    with pytest.raises(ResumeRefused) as caught:
        a_comparison(path, "base", "patched").check("session", Fingerprint({}))
    text = str(caught.value)
    assert text.startswith(f"{path.parent.name} is a comparison of builds, which cannot be resumed")
    assert "fingerprint" not in text
    command = shlex.split(text.split("`")[1])
    assert command[:2] == ["pytest-ddtree", "compare"]
    assert compare_cli.run(command[2:]) == 0


def test_a_baseline_is_no_side_of_a_comparison(tmp_path: Path) -> None:
    path = tmp_path / "ab" / "results.jsonl"
    a_comparison(path, "patched")
    with Store(path) as store:
        store.append(
            "round", build="base", round={**a_round(0, config="baseline").as_json(), "build": "base"}
        )
    with pytest.raises(ResumeRefused, match="nothing to compare"):
        Resumed(read_run(path)).check("session", Fingerprint({}))


@pytest.mark.parametrize("builds", [(), ("base",)])
def test_a_comparison_with_too_little_to_compare_names_no_command(
    tmp_path: Path, builds: tuple[str, ...]
) -> None:
    with pytest.raises(ResumeRefused, match=r"is a comparison of builds.*nothing to compare") as caught:
        a_comparison(tmp_path / "ab" / "results.jsonl", *builds).check("session", Fingerprint({}))
    assert "`" not in str(caught.value)


def test_a_comparison_of_which_only_the_options_were_written_is_one_too(tmp_path: Path) -> None:
    path = tmp_path / "ab" / "results.jsonl"
    with Store(path) as store:
        store.append("run", plugin="x", started="now", settings={"build": ["base=args:", "patched=args:"]})
    with pytest.raises(ResumeRefused, match="is a comparison of builds"):
        Resumed(read_run(path)).check("session", Fingerprint({}))


def at_least(count: int) -> Callable[[Sequence[Round]], bool]:
    return lambda rounds: len(rounds) >= count


def test_a_config_is_complete_when_it_was_read_back_verified_and_measured(tmp_path: Path) -> None:
    resumed = stored(tmp_path, session={})
    assert resumed.complete(CONFIG, [KEY], at_least(1))
    assert not resumed.complete(CONFIG, [KEY], at_least(2))
    assert not resumed.complete(CONFIG, [KEY, CellKey(60, 8)], at_least(1))
    assert not resumed.complete("b16-k4-wnone", [], at_least(1))
    assert resumed.complete(CONFIG, [KEY], at_least(1), full=True)
    assert resumed.rounds(CONFIG, KEY) == (a_round(0),)
    assert resumed.rounds(CONFIG, OTHER) == ()
    assert [verdict.kind for verdict in resumed.verdicts(CONFIG)] == ["exact"]


@pytest.mark.parametrize(
    ("records", "complete"),
    [
        ([("mismatches", {"config": CONFIG, "mismatches": ["window: asked 128, the log says none"]})], False),
        ([("verdict", {"verdict": a_verdict("unknown").as_json()})], False),
        ([("verdict", {"verdict": a_verdict("corrupt").as_json()})], True),
        ([("infeasible", {"config": CONFIG, **key_json(OTHER), "text": "too long"})], True),
        ([("round", {"round": a_round(0, key=OTHER).as_json()})], True),
        ([], False),
    ],
)
def test_what_else_makes_a_config_complete_or_not(
    tmp_path: Path, records: list[tuple[str, dict[str, Any]]], complete: bool
) -> None:
    path = stored(tmp_path, session={}).stored.path
    with Store(path) as store:
        for kind, fields in records:
            store.append(kind, **fields)
    assert Resumed(read_run(path)).complete(CONFIG, [KEY, OTHER], at_least(1)) == complete


def test_a_verdict_of_level_full_that_is_wanted_must_be_there(tmp_path: Path) -> None:
    path = stored(tmp_path, session={}).stored.path
    with Store(path) as store:
        store.append("verdict", verdict=a_verdict("exact", level="first-divergence").as_json())
    resumed = Resumed(read_run(path))
    assert resumed.complete(CONFIG, [KEY], at_least(1))
    assert not resumed.complete(CONFIG, [KEY], at_least(1), full=True)


def test_another_version_of_the_engine_refuses_even_on_a_config_that_is_new(tmp_path: Path) -> None:
    path = tmp_path / "20260101T000000Z-1" / "results.jsonl"
    with Store(path) as store:
        store.append("fingerprint", scope="session", fingerprint={"version": "not looked at"})
        store.append("fingerprint", scope=CONFIG, fingerprint={"version": "0.5.16"})
    resumed = Resumed(read_run(path))
    resumed.check_version(Fingerprint({"version": "0.5.16"}))
    with pytest.raises(ResumeRefused, match=r"version: was 0\.5\.16 on b8-k4-wnone, is 0\.5\.17"):
        resumed.check_version(Fingerprint({"version": "0.5.17"}))


def sessions(path: Path, *parts: tuple[dict[str, Any], list[tuple[str, dict[str, Any]]]]) -> Resumed:
    """A run that was written by several sessions: the options of each, and its records."""
    for number, (settings, records) in enumerate(parts):
        with Store(path / "20260101T000000Z-1" / "results.jsonl") as store:
            store.append("run", plugin="x", started="now", settings=settings, resumed=number > 0)
            for kind, fields in records:
                store.append(kind, **fields)
    return Resumed(read_run(path / "20260101T000000Z-1" / "results.jsonl"))


def verdict_of(kind: VerdictKind, level: Level = "first-divergence") -> tuple[str, dict[str, Any]]:
    return "verdict", {"verdict": a_verdict(kind, level).as_json()}


ROUND = ("round", {"round": a_round(0).as_json()})
READ_BACK = ("mismatches", {"config": CONFIG, "mismatches": []})


@pytest.mark.parametrize(
    ("first", "then", "counts"),
    [
        ("unknown", "exact", "exact"),
        ("exact", "unknown", "unknown"),
        ("corrupt", "exact", "corrupt"),
        ("exact", "corrupt", "corrupt"),
    ],
)
def test_what_could_not_be_judged_may_be_judged_later_and_corrupt_stays_so(
    tmp_path: Path, first: VerdictKind, then: VerdictKind, counts: str
) -> None:
    """As the session itself reports it, whose own verdict is the last: a stored run called its speeds unproven for ever."""
    resumed = sessions(tmp_path, ({}, [READ_BACK, verdict_of(first)]), ({}, [verdict_of(then), ROUND]))
    results = resumed.stored.results
    verdict = results.verdict(CONFIG)
    assert verdict is not None
    assert verdict.kind == counts
    assert (results.figures(CONFIG, KEY) is not None) == (counts == "exact")
    assert resumed.complete(CONFIG, [KEY], at_least(1)) == (counts != "unknown")


@pytest.mark.parametrize(
    ("factors", "complete"), [((4.0,), True), ((4.0, 4.0), True), ((100.0,), False), ((4.0, 100.0), False)]
)
def test_a_verdict_is_taken_over_only_where_every_session_judged_alike(
    tmp_path: Path, factors: tuple[float, ...], complete: bool
) -> None:
    """Which session judged a config is not stored: the second one, with a limit that lets anything pass, may have."""
    now = make_settings({"gap_factor": ("4.0", "test")})
    options = settings_json(now)
    parts = [
        ({**options, "gap_factor": factor}, [READ_BACK, verdict_of("exact"), ROUND]) for factor in factors
    ]
    recall = Recall(sessions(tmp_path, *parts), Plan(), now, at_least(1))
    (config,) = make_grid((8,), (4,), (None,))
    assert config.id == CONFIG
    assert recall.complete(config) == complete


def test_the_session_that_judges_last_says_what_fails(tmp_path: Path) -> None:
    parts = [({"strict": strict}, [("warning", {"text": "the clock moved"})]) for strict in (False, True)]
    results = sessions(tmp_path, *parts).stored.results
    assert results.strict
    assert results.warnings == ["the clock moved"]


def test_of_a_gate_that_is_judged_again_the_last_word_counts(tmp_path: Path) -> None:
    """Also when there are more cells together by then, and when other figures are expected."""
    design = Design(alpha=0.2)
    tolerance = Tolerance(0.03, "same session")
    slow = {number: 0.8 * rate for number, rate in enumerate((1.0, 1.01, 0.99, 1.0))}
    same = dict(enumerate((1.0, 1.01, 0.99, 1.0)))
    before = dict.fromkeys(range(4), 1.0)
    first = [
        gate_pooled(TOK_S, [(before, slow)], tolerance, design),
        gate_cell("x ctx60-c4", TOK_S, before, slow, tolerance, design, against="expected 2026-03-01"),
        gate_cell("x ctx60-c4", TOK_S, before, same, tolerance, design, against=f"{DRIFT}, 2026-02-01"),
    ]
    then = [
        gate_pooled(TOK_S, [(before, same)] * 2, tolerance, design),
        gate_cell("x ctx60-c4", TOK_S, before, same, tolerance, design, against="expected 2026-03-02"),
    ]
    parts = [({}, [("gate", {"gate": one.as_json()}) for one in gates if one]) for gates in (first, then)]
    gates = sessions(tmp_path, *parts).stored.results.gates
    assert [(gate["what"], gate["outcome"], gate["against"]) for gate in gates] == [
        ("x ctx60-c4", "fine", f"{DRIFT}, 2026-02-01"),
        ("all 2 cells together", "fine", "expected"),
        ("x ctx60-c4", "fine", "expected 2026-03-02"),
    ]
