"""A slow tree found, planted faults found, a canary's finding that fails a test, on a real GPU: the figures that the docs rest on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pytest_ddtree.workload.endings import UNCHOSEN, Endings

DATA = Path(__file__).parents[1] / "data"
SEEN: dict[str, Any] = json.loads((DATA / "sglang-0.5.16" / "fifth-contact.json").read_text("utf-8"))


def test_the_slow_tree_was_blamed_by_name_and_its_confirmation_had_no_time() -> None:
    run = SEEN["ab_tree_slow"]
    blamed = {f"{gate['what']}: {gate['metric']}" for gate in run["gates"] if gate["outcome"] == "regressed"}
    assert blamed == {"build patched, b8-k8-wnone, all cells together: tok_s"}
    assert [build for build, config, _, _ in run["starts"] if config != "baseline"] == [
        "base",
        "patched",
        "patched",
        "base",
    ]
    assert {one["kind"] for one in run["verdicts"]} == {"tie"}
    assert run["stopped"] == "no more passes: 2 more take about 4.3 min, --ddtree-time-budget leaves 3.8 min"


def test_a_prompt_that_the_baseline_never_answered_ends_early_on_both_builds() -> None:
    rounds = SEEN["ab_tree_slow"]["rounds"]
    baseline = rounds["base baseline ctx256-c8 start1"]
    assert [(number, after) for number, *_, after in baseline] == [(0, 0), (1, 0), (2, 0), (3, 0)]
    (base,) = [one for one in rounds["base b8-k8-wnone ctx256-c8 start1"] if one[-1]]
    (patched,) = [one for one in rounds["patched b8-k8-wnone ctx256-c8 start1"] if one[-1]]
    assert (base[0], base[-1]) == (patched[0], patched[-1]) == (7, 59)
    seen = Endings(
        answers=24,
        tokens=base[2],
        tokens_after_end=59,
        most_after_end=59,
        looping=0,
        distinct_mean=1.0,
        distinct_least=1.0,
    )
    assert seen.invalid() is None
    assert "3.8% of the output tokens" in str(seen.invalid(UNCHOSEN))


@pytest.mark.parametrize(
    ("run", "criteria", "largest"),
    [("slot_every_step", ["gap", "share", "tail"], 13.4), ("swapped_tokens", ["gap", "tail"], 10.7)],
)
def test_planted_faults_were_found(run: str, criteria: list[str], largest: float) -> None:
    (verdict,) = SEEN[run]["verdicts"]
    assert (verdict["kind"], verdict["criteria"]) == ("corrupt", criteria)
    assert verdict["largest_nats"] == pytest.approx(largest, abs=0.05)


def test_the_canary_failed_a_test_whose_verdict_was_a_tie() -> None:
    (verdict,) = SEEN["canary"]["verdicts"]
    assert (verdict["kind"], verdict["off"], verdict["tokens"]) == ("tie", 24, 961)
    ((name, outcome, text),) = SEEN["canary"]["tests"]
    assert (name, outcome) == ("test_exact_against_baseline[chain-wnone]", "failed")
    assert text.startswith("chain-wnone: its KV canary found 25 slots that do not hold what was written")


def test_the_ignored_min_p_was_seen_by_the_servers_own_prefill() -> None:
    ((clause, found),) = SEEN["truncation_self"]["clauses"].items()
    assert clause == "chain-wnone truncation"
    assert "11.63% of 576 tokens are not the argmax" in found["problems"][0]


@pytest.mark.parametrize("run", ["w7", "w16"])
def test_windows_of_7_and_16_hold_the_contracts_short_clauses_and_tie(run: str) -> None:
    assert len(SEEN[run]["clauses"]) == 5
    assert all(found["problems"] == [] for found in SEEN[run]["clauses"].values())
    assert [one["kind"] for one in SEEN[run]["verdicts"]] == ["tie"]
