"""`--ddtree-plan` says what a run will cost and starts nothing; `--ddtree-time-budget` skips the rest and keeps what is measured."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from suite import SMALL, run

from pytest_ddtree.budget import duration

BENCH = ("-m", "bench", "-k", "throughput", *SMALL)
SPENDER = """
from pytest_ddtree.budget import Budget
from pytest_ddtree.session import BUDGET


class Spender:
    def __init__(self, config):
        self.config = config

    def pytest_ddtree_measured(self, config, figures):
        if figures.config == "baseline":
            self.config.stash[BUDGET]._allowed_s = 0.0


def pytest_configure(config):
    config.pluginmanager.register(Spender(config))
"""


@pytest.mark.slow
def test_a_plan_starts_nothing_and_knows_what_an_earlier_run_took(tmp_path: Path) -> None:
    plan = (*BENCH, "--ddtree-budget", "8,16", "--ddtree-plan")
    first = run(*plan, results=tmp_path)
    assert first.code == 0, first.output
    assert "server starts: 3" in first.output
    assert "baseline: its tests and answers and speeds that the configs are compared with" in first.output
    assert "cells: 3 on 3 configs" in first.output
    assert "6 rounds" in first.output
    assert "no estimate: there are no timings" in first.output
    assert "was not asked" not in first.output
    assert first.tests == {}
    assert not list(tmp_path.glob("*/results.jsonl"))

    ran = run(*BENCH, "--ddtree-budget", "8", results=tmp_path)
    assert ran.code == 0, ran.output
    (stored,) = tmp_path.glob("*/results.jsonl")
    timings = [json.loads(line)["timing"] for line in stored.read_text().splitlines() if '"timing"' in line]
    assert {(one["config"], one["what"]) for one in timings} == {
        ("baseline", "ctx60-c2"),
        ("b8-k4-wnone", "ctx60-c2"),
    }

    second = run(*plan, results=tmp_path)
    assert second.code == 0, second.output
    assert "for 3 of 3 tests" in second.output
    assert "(1 of them by another config's)" in second.output
    assert len(list(tmp_path.glob("*/results.jsonl"))) == 1

    before = stored.read_bytes()
    resumed = run(*plan, "--ddtree-resume", "last", results=tmp_path)
    assert resumed.code == 0, resumed.output
    assert f"taken over from {stored.parent.name}: 2 of 3 tests cost nothing" in resumed.output
    assert "cells: 1 on 1 config" in resumed.output
    assert "  2 rounds" in resumed.output
    assert "  b16-k4-wnone: its tests" in resumed.output
    assert "  b8-k4-wnone:" not in resumed.output
    assert "server starts: 2\n" in resumed.output
    # What earlier starts took is no plan.
    assert " s: baseline" not in resumed.output
    assert stored.read_bytes() == before


def test_a_plan_of_builds_counts_every_stay_and_what_deciding_may_take(tmp_path: Path) -> None:
    builds = ("--ddtree-build", "patched=args:", "--ddtree-build", "base=args:")
    plan = run(
        "-m",
        "bench",
        *SMALL,
        "--ddtree-budget",
        "8",
        *builds,
        "--ddtree-ab-passes",
        "2",
        "--ddtree-plan",
        results=tmp_path,
    )
    assert plan.code == 0, plan.output
    assert "server starts: 6, and up to 12 more\n" in plan.output
    assert "  baseline of base: " in plan.output
    assert "  baseline of patched: " in plan.output
    assert "  b8-k4-wnone x 4: ab: the builds take turns (base patched patched base)\n" in plan.output
    assert "  b8-k4-wnone x 12: ab: further passes, 2 at a time, " in plan.output
    assert "cells: 1 on 1 config, on each of 2 builds\n" in plan.output
    assert not list(tmp_path.glob("*/results.jsonl"))


@pytest.mark.slow
@pytest.mark.parametrize("earlier", ["whole", "corrupt"])
def test_a_plan_of_builds_knows_what_an_earlier_comparison_took(tmp_path: Path, earlier: str) -> None:
    """By stay: whatever passes it made to decide. A corrupt build had no stay of its own, so its time says nothing."""
    fault = " --plant bonus_repeated" if earlier == "corrupt" else ""
    chosen = ("-m", "bench", "-k", "test_builds", *SMALL, "--ddtree-budget", "8", "--ddtree-client-lag=10")
    chosen += ("--ddtree-build", "base=args:", "--ddtree-build", f"other=args:{fault}")
    ran = run(*chosen, results=tmp_path)
    (stored,) = tmp_path.glob("*/results.jsonl")
    timings = [json.loads(line)["timing"] for line in stored.read_text().splitlines() if '"timing"' in line]
    plan = run(*chosen, "--ddtree-plan", "--ddtree-ab-passes", "4", results=tmp_path)
    if earlier == "corrupt":
        assert ran.code == 1, ran.output
        assert timings == []
        assert "no estimate: there are no timings" in plan.output
        return
    (timing,) = timings
    assert (timing["test"], timing["config"]) == ("test_builds", "b8-k4-wnone")
    # A stay of each of two builds a pass, of which there were those asked for or those that deciding took.
    assert timing["amount"] in (4, 8, 12, 16)
    assert f"time: about {duration(timing['seconds'] * 8 / timing['amount'])} for 1 of 1 tests" in plan.output
    assert "without further passes" in plan.output


@pytest.mark.slow
def test_a_plan_counts_the_starts_that_only_the_relations_need(tmp_path: Path) -> None:
    plan = (*SMALL, "--ddtree-budget", "chain,8", "--ddtree-plan")
    alone = run("-m", "exactness", "-k", "test_relations", *plan, results=tmp_path)
    assert "server starts: 2\n" in alone.output
    for config in ("chain-wnone", "b8-k4-wnone"):
        assert f"{config}: relations: its accept lengths, for no selected test verifies it" in alone.output
    verified = run(
        "-m", "exactness", "-k", "test_relations or exact_against_baseline", *plan, results=tmp_path
    )
    assert "server starts: 3\n" in verified.output
    assert "relations:" not in verified.output


@pytest.mark.slow
def test_a_plan_counts_the_start_that_only_the_window_probe_needs(tmp_path: Path) -> None:
    probed = ("-m", "bench", "-k", "window_acts", *SMALL, "--ddtree-plan")
    alone = run(*probed, "--ddtree-window", "64", results=tmp_path)
    assert "b8-k4-wnone: window-probe: the windows of the grid are compared with it" in alone.output
    both = run("-m", "bench", *SMALL, "--ddtree-plan", "--ddtree-window", "none,64", results=tmp_path)
    assert "server starts: 3\n" in both.output
    assert "window-probe" not in both.output


def test_out_of_time_the_rest_is_skipped_and_what_is_measured_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", "/proc/no-such")
    (tmp_path / "spender.py").write_text(SPENDER)
    budget = ("-p", "spender", "-o", f"pythonpath={tmp_path}", "--ddtree-time-budget", "1h")
    outcome = run(*BENCH, "--ddtree-budget", "8", *budget, results=tmp_path)
    assert outcome.code == 0, outcome.output
    assert outcome.tests == {
        "test_throughput[baseline-ctx60-c2]": "passed",
        "test_throughput[b8-k4-wnone-ctx60-c2]": "skipped",
    }
    assert "out of time: --ddtree-time-budget" in outcome.messages["test_throughput[b8-k4-wnone-ctx60-c2]"]
    assert "1 test did not run and judged nothing; what was measured before is valid" in outcome.output
    assert "server starts: 1 in" in outcome.output
    assert "baseline: code, temperature 0, cache flushed, 2 rounds" in outcome.output
    # A summary that cannot be written costs no table and no exit code.
    assert "GITHUB_STEP_SUMMARY: not written: " in outcome.output
    assert "Traceback" not in outcome.output


def test_a_budget_of_nothing_starts_nothing(tmp_path: Path) -> None:
    outcome = run(*BENCH, "--ddtree-time-budget", "0.0001s", results=tmp_path)
    assert set(outcome.tests.values()) == {"skipped"}, outcome.output
    assert not list(tmp_path.glob("*/results.jsonl"))
