"""A copy slowed by a sleep of 5 % of a step, blamed by a session of builds that were up at once; and the slow copy as base, broken off."""

from __future__ import annotations

import json
import math
import statistics
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from .turns import compared

DATA = Path(__file__).parents[1] / "data"
SEEN: dict[str, Any] = json.loads((DATA / "sglang-0.5.16" / "eighth-contact.json").read_text("utf-8"))
RUN: dict[str, Any] = SEEN["ab_chain_slow_at_once"]
STAY = 8
"""Rounds of a cell in a pass."""


@pytest.mark.parametrize(
    ("passes", "outcome", "confirmed"),
    [(2, "worse", False), (4, "undecided", True), (6, "worse", True)],
)
def test_the_slow_copy_is_blamed_once_more_passes_confirm_it(
    passes: int, outcome: str, confirmed: bool
) -> None:
    """What the session said at each of its looks: it looked worse, was undecided, and was blamed."""
    found = compared(RUN, ("base", "slow"), passes)
    assert (found.changes[0].outcome, found.confirmed) == (outcome, confirmed)
    assert found.unrest is None


def test_the_verdict_of_the_session_is_that_of_its_rounds() -> None:
    (gate,) = [one for one in RUN["gates"] if one["outcome"] == "regressed"]
    change = compared(RUN, ("base", "slow"), 6).changes[0]
    assert gate["what"] == "build slow, chain-wnone, all cells together"
    assert change.ratio[0] == pytest.approx(gate["now"], abs=2e-4)
    assert f"n={change.shown.n}," in gate["text"]
    assert RUN["exit_code"] == 1


def test_with_the_names_exchanged_the_other_build_is_the_better_one() -> None:
    found = compared(RUN, ("slow", "base"), 6)
    assert found.changes[0].outcome == "better"
    assert not found.worse


def test_the_slow_copy_as_base_looks_slow_too_and_nobody_is_blamed_after_a_pass() -> None:
    found = compared(SEEN["ab_chain_slow_as_base_at_once"], ("base", "fast"), 1)
    assert found.changes[0].ratio[0] == pytest.approx(1.102, abs=1e-3)
    assert not found.worse


def spread(run: dict[str, Any], cell: str, rounds: int) -> tuple[float, float]:
    """Standard deviations of the log ratio slow / base of a cell: from round to round in a pass, and from pass to pass."""
    rates: dict[int, dict[str, float]] = defaultdict(dict)
    for name, kept in run["rounds"].items():
        build, config, of, _ = name.split(" ")
        if config != "baseline" and of.endswith(f"-{cell}"):
            for number, wall_s, tokens, *_ in kept:
                rates[number][build] = math.log(tokens / wall_s)
    by_pass: dict[int, list[float]] = defaultdict(list)
    for number, both in rates.items():
        by_pass[number // rounds].append(both["slow"] - both["base"])
    assert {len(one) for one in by_pass.values()} == {rounds}
    within = math.sqrt(statistics.mean(map(statistics.variance, by_pass.values())))
    return within, statistics.stdev(map(statistics.mean, by_pass.values()))


@pytest.mark.parametrize(("cell", "rounds", "passes"), [("c1", 0.098, 0.034), ("c8", 0.116, 0.048)])
def test_passes_of_builds_at_once_differ_by_what_their_rounds_explain(
    cell: str, rounds: float, passes: float
) -> None:
    found = spread(RUN, cell, STAY)
    assert found == (pytest.approx(rounds, abs=1e-3), pytest.approx(passes, abs=1e-3))
    assert found[1] < 1.3 * found[0] / math.sqrt(STAY)


def test_passes_stay_by_stay_did_not() -> None:
    seventh = json.loads((DATA / "sglang-0.5.16" / "seventh-contact.json").read_text("utf-8"))
    rounds, passes = spread(seventh["ab_chain_slow"], "c8", 4)
    assert (rounds, passes) == (pytest.approx(0.089, abs=1e-3), pytest.approx(0.140, abs=1e-3))
    assert passes > 3 * rounds / math.sqrt(4)


def test_the_copy_answers_as_the_base_does() -> None:
    for run in SEEN.values():
        assert {one["kind"] for one in run["verdicts"]} == {"tie"}
        assert len(run["verdicts"]) == 3


def test_where_the_minutes_of_the_session_went() -> None:
    starts = [seconds for *_, seconds in RUN["starts"]]
    assert (len(starts), round(sum(starts))) == (14, 611)
    loads = sum(wall_s for kept in RUN["rounds"].values() for _, wall_s, *_ in kept)
    assert round(loads) == 372
    assert RUN["seconds"] == 1170
