"""Builds in turns, two groups, tensor parallelism and clients on a real GPU once more: the figures that the docs rest on.

The rounds of the comparisons are real, noise and all, so the rule of the A/B is held against them here.
"""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

import pytest

from pytest_ddtree.workload.endings import COMPARED, Endings

from .turns import compared

DATA = Path(__file__).parents[1] / "data"
SEEN: dict[str, Any] = json.loads((DATA / "sglang-0.5.16" / "sixth-contact.json").read_text("utf-8"))


def test_the_slow_tree_alone_on_its_machine_is_blamed_after_five_passes_and_not_before() -> None:
    run = SEEN["ab_tree_slow"]
    found = {passes: compared(run, ("base", "slow"), passes).changes[0] for passes in (2, 4, 5)}
    assert {passes: change.outcome for passes, change in found.items()} == {
        2: "undecided",
        4: "undecided",
        5: "worse",
    }
    value, low, high = found[5].ratio
    assert (value, low, high) == (pytest.approx(0.874, abs=6e-4), *map(pytest.approx, (low, high)))
    assert (round(low, 3), round(high, 3)) == (0.826, 0.925)
    assert compared(run, ("base", "slow"), 5).confirmed
    assert {one["kind"] for one in run["verdicts"]} == {"tie"}


@pytest.mark.parametrize("passes", [2, 4])
def test_an_identical_copy_is_not_blamed_while_its_stays_differ_by_a_fifth(passes: int) -> None:
    run = SEEN["ab_tree_three_builds"]
    copy = compared(run, ("base", "same"), passes)
    assert not copy.beyond_noise
    assert not compared(run, ("same", "base"), passes).beyond_noise
    # Two stays may agree by luck; four show how far apart they are.
    assert copy.unrest == (None if passes == 2 else pytest.approx(0.18, abs=0.01))


def test_a_slow_tree_beside_another_comparison_needs_more_than_four_passes() -> None:
    run = SEEN["ab_tree_three_builds"]
    pooled = compared(run, ("base", "slow"), 4).changes[0]
    assert (pooled.outcome, round(pooled.ratio[0], 3)) == ("undecided", 0.894)


def test_three_passes_of_the_chain_blame_nobody_though_the_base_is_the_slow_one() -> None:
    run = SEEN["ab_chain_slow_as_base"]
    found = compared(run, ("base", "patched"), 3)
    assert found.changes[0].ratio[0] > 1.1
    assert not found.beyond_noise
    (name, outcome, text) = run["tests"][0]
    assert (name, outcome) == ("test_builds[chain-wnone]", "error")
    assert "1 of 10 answers end in a loop" in text


def test_the_loop_that_ended_a_comparison_is_borne_now() -> None:
    seen = Endings(
        answers=10,
        tokens=640,
        tokens_after_end=0,
        most_after_end=0,
        looping=1,
        distinct_mean=1.0,
        distinct_least=0.4,
    )
    assert seen.invalid() is not None
    assert seen.invalid(COMPARED, coming=20) is None
    assert seen.invalid(coming=20) is None


def test_two_workers_make_four_starts_with_the_baseline_first() -> None:
    starts = [config for _, config, _, _ in SEEN["two_groups"]["starts"]]
    assert sorted(starts) == ["b8-k8-w128", "b8-k8-wnone", "baseline", "baseline@group1"]
    assert starts.index("baseline") < starts.index("b8-k8-w128")
    assert starts.index("baseline@group1") < starts.index("b8-k8-wnone")
    two, one = SEEN["two_groups"]["cells"], SEEN["sweep"]["cells"]
    accepted = {name: value[1] for name, value in two.items() if name.startswith("b8")}
    assert accepted == {name: pytest.approx(one[name][1], rel=0.03) for name in accepted}


def test_a_tree_with_an_fp8_cache_and_a_window_on_two_gpus_is_within_its_own_floor() -> None:
    for verdict in SEEN["tp2_fp8"]["verdicts"]:
        assert (verdict["kind"], verdict["criteria"]) == ("tie", [])
        assert 0.03 < verdict["off"] / verdict["tokens"] < 0.04


def test_trees_accept_at_least_as_much_as_the_chain() -> None:
    pairs = {(one["left"], one["right"]): one for one in SEEN["relations"]["relations"]}
    assert set(pairs) == {
        ("b7-k7-wnone", "chain-wnone"),
        ("b8-k8-wnone", "chain-wnone"),
        ("b8-k8-w128", "chain-w128"),
    }
    assert {one["outcome"] for one in pairs.values()} == {"holds"}
    assert all(low < value < high for low, value, high in (one["ratio"] for one in pairs.values()))


def test_clients_differ_on_a_speculative_server_where_their_accept_lengths_do() -> None:
    clients = SEEN["clients_chain"]
    ours = [rounds[0] for rounds in clients["ours"]]
    for peer in ("sglang", "rust"):
        for mine, theirs, ratio in zip(ours, clients[peer], clients["ratio"][peer], strict=True):
            assert ratio == pytest.approx(mine[0] / theirs[0], abs=1e-3)
            if abs(ratio - 1) > 0.02:
                assert (ratio > 1) == (mine[1] > theirs[1])
    speed = {
        "ours": statistics.mean(one[0] for one in ours),
        "sglang": statistics.mean(one[0] for one in clients["sglang"]),
        "rust": statistics.mean(one[0] for one in clients["rust"]),
    }
    assert {name: round(value, 1) for name, value in speed.items()} == {
        "ours": 367.7,
        "sglang": 374.1,
        "rust": 373.2,
    }
