"""What a plan says of earlier timings, and what it does not say without any; the time budget's words."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_ddtree.budget import Budget, duration
from pytest_ddtree.estimate import Cost, Count, PlannedStart, PlannedTest, Timing, estimate, lines


def timing(
    seconds: float, config: str = "b8-k4-wnone", what: str = "ctx60-c1", amount: float = 1.0
) -> Timing:
    return Timing(test="test_throughput", config=config, what=what, seconds=seconds, amount=amount)


def planned(config: str = "b8-k4-wnone", what: str = "ctx60-c1", amount: float = 1.0) -> PlannedTest:
    return PlannedTest(test="test_throughput", config=config, what=what, amount=amount)


def test_the_median_of_the_newest_timings_counts() -> None:
    earlier = [timing(1000.0), *(timing(seconds) for seconds in (8.0, 9.0, 10.0, 11.0, 50.0))]
    assert estimate([planned()], earlier).seconds == 10.0


def test_twice_the_work_takes_twice_the_time() -> None:
    assert estimate([planned(amount=200.0)], [timing(10.0, amount=100.0)]).seconds == 20.0


def test_another_config_stands_in_and_is_named_as_such_but_the_baseline_never_does() -> None:
    found = estimate([planned("b16-k4-wnone"), planned("baseline")], [timing(10.0)])
    assert (found.seconds, found.known, found.by_another_config) == (10.0, 1, 1)
    assert found.unknown == ("test_throughput[baseline-ctx60-c1]",)


@given(st.lists(st.floats(0.01, 1e5), min_size=1, max_size=12))
def test_an_estimate_lies_within_what_was_seen(seconds: list[float]) -> None:
    found = estimate([planned()], [timing(one) for one in seconds])
    assert min(seconds) <= found.seconds <= max(seconds)


def test_a_timing_comes_back_from_the_store() -> None:
    assert Timing.from_json(timing(3.0).as_json()) == timing(3.0)


@pytest.mark.parametrize(
    ("name", "value"), [("amount", 0.0), ("amount", "nan"), ("seconds", -1.0), ("seconds", "inf")]
)
def test_what_cannot_be_a_timing_is_none(name: str, value: object) -> None:
    """A plan divides by the amount."""
    with pytest.raises(ValueError, match="no timing"):
        Timing.from_json({**timing(3.0).as_json(), name: value})


def cost(**changes: object) -> Cost:
    fields = {
        "starts": (
            PlannedStart("baseline", "its tests"),
            PlannedStart("baseline", "rescore: at the end", False),
        ),
        "cells": 4,
        "configs": 2,
        "counts": (Count("rounds", 8, 12),),
        "estimate": None,
        "source": ".ddtree",
        "bound_s": 7200.0,
        "budget_s": None,
    }
    return Cost(**{**fields, **changes})  # type: ignore[arg-type]


def test_a_start_that_is_made_several_times_counts_as_often() -> None:
    text = lines(cost(starts=(PlannedStart("b8", "turns", times=4), PlannedStart("b8", "more", False, 12))))
    assert text[:3] == [
        "server starts: 4, and up to 12 more",
        "  b8 x 4: turns",
        "  b8 x 12: more (only if needed)",
    ]


def test_without_timings_there_is_a_bound_and_no_estimate() -> None:
    text = "\n".join(lines(cost()))
    assert "server starts: 1, and up to 1 more" in text
    assert "cells: 4 on 2 configs" in text
    assert "8 to 12 rounds" in text
    assert "no estimate: there are no timings" in text
    assert "bound: 2.0 h if every start and request took as long as its time-out allows" in text


def test_with_timings_the_plan_says_how_much_they_cover() -> None:
    found = estimate([planned(), planned("b16-k4-wnone"), planned("baseline")], [timing(60.0)])
    text = "\n".join(lines(cost(estimate=found, budget_s=2700.0)))
    assert "about 2.0 min for 2 of 3 tests" in text
    assert "(1 of them by another config's)" in text
    assert "unknown and not in it: test_throughput[baseline-ctx60-c1]" in text
    assert "nothing new begins after --ddtree-time-budget, 45.0 min" in text


def test_a_budget_is_spent_when_its_time_has_passed() -> None:
    now = 100.0
    budget = Budget(60.0, clock=lambda: now)
    assert (budget.left_s, budget.spent) == (60.0, False)
    now = 160.0
    assert budget.spent
    assert str(budget) == "--ddtree-time-budget 60 s is spent"
    assert math.isinf(Budget().left_s)
    assert not Budget().spent


@pytest.mark.parametrize(("seconds", "text"), [(45, "45 s"), (210, "3.5 min"), (7200, "2.0 h")])
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text
