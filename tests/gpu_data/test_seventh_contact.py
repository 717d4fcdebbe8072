"""The first contact with the drafter that ships, every gap of a mixture of experts, and builds that no number of stays could tell apart."""

from __future__ import annotations

import json
import math
import statistics
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import optimize, special

from benchmarks.exactness.sessions import FLIP_NATS, FLIPPED

from .turns import compared

DATA = Path(__file__).parents[1] / "data"
SEEN: dict[str, Any] = json.loads((DATA / "sglang-0.5.16" / "seventh-contact.json").read_text("utf-8"))
GAPS = np.concatenate([row["gaps_nats"] for rows in SEEN["moe_floors"].values() for row in rows])


@pytest.mark.parametrize("passes", [4, 8, 12])
def test_a_machine_that_moves_by_a_quarter_from_stay_to_stay_blames_nobody(passes: int) -> None:
    found = compared(SEEN["ab_chain_slow"], ("base", "slow"), passes)
    assert not found.beyond_noise
    assert found.changes[0].outcome == "undecided"
    assert not compared(SEEN["ab_chain_slow"], ("slow", "base"), passes).beyond_noise
    if passes == 12:
        assert found.unrest == pytest.approx(0.237, abs=1e-3)


def test_stays_differ_by_more_than_their_rounds_explain() -> None:
    """At concurrency 8 time a step deviates by 11 % from stay to stay, where four rounds of 7.6 % would make it 4 %."""
    steps = {
        name: [math.log(wall_s * 8 / steps) for _, wall_s, _, steps, _ in rounds]
        for name, rounds in SEEN["ab_chain_slow"]["rounds"].items()
        if " ctx256-c8 " in name and "baseline" not in name
    }
    assert len(steps) == 24
    within = math.sqrt(statistics.mean(statistics.variance(rounds) for rounds in steps.values()))
    between = statistics.mean(
        statistics.stdev(statistics.mean(rounds) for name, rounds in steps.items() if name.startswith(build))
        for build in ("base", "slow")
    )
    assert (within, between) == (pytest.approx(0.076, abs=2e-3), pytest.approx(0.109, abs=5e-3))


def test_accept_lengths_of_the_engine_and_of_sglang_agree_prompt_by_prompt() -> None:
    contact, generator = SEEN["contact"], np.random.default_rng(1)
    for engine, server in (("chain", "chain"), ("b7-k7", "b7-k7-wnone")):
        ours, theirs = contact["engine_steps"][engine], contact["server_steps"][server]
        rows = np.array([[*ours[tag], *theirs[tag]] for tag in sorted(ours.keys() & theirs.keys())])
        assert len(rows) == 48
        drawn = rows[generator.integers(0, len(rows), (4000, len(rows)))].sum(axis=1)
        ratios = drawn[:, 0] / drawn[:, 1] / (drawn[:, 2] / drawn[:, 3])
        low, high = np.percentile(ratios, [2.5, 97.5])
        assert low < 1 < high
        assert high - low < 0.13


def test_the_law_of_flipped_routes_is_the_one_that_the_gaps_have() -> None:
    """Maximum likelihood of near-ties (flipped by a Gaussian error) and exponential flips, as the simulation draws them."""

    def surprise(parameters: np.ndarray[Any, np.dtype[np.float64]]) -> float:
        share, mean, sigma = 1 / (1 + np.exp(-parameters[0])), np.exp(parameters[1]), np.exp(parameters[2])
        ties = np.sqrt(np.pi / 2) / sigma * special.erfc(GAPS / (sigma * np.sqrt(2)))
        return -float(np.log(share * np.exp(-GAPS / mean) / mean + (1 - share) * ties).sum())

    found = optimize.minimize(surprise, [-2.0, 0.0, -2.0], method="Nelder-Mead").x
    assert len(GAPS) == 1697
    assert 1 / (1 + math.exp(-found[0])) == pytest.approx(FLIPPED, abs=0.005)
    assert math.exp(found[1]) == pytest.approx(FLIP_NATS, abs=0.01)
    assert GAPS.max() == 6.0
    for bound, excess in ((0.25, 0.71), (0.5, 0.78), (1.0, 0.76), (1.5, 1.04)):
        assert (GAPS[bound < GAPS] - bound).mean() == pytest.approx(excess, abs=0.006)


def test_a_drafter_of_another_target_was_refused_by_the_server_alone() -> None:
    seen = SEEN["tree_with_experts"]
    assert {outcome for _, outcome, _ in seen["tests"]} == {"error"}
    assert all(text.endswith("(refused config)") for _, _, text in seen["tests"])
