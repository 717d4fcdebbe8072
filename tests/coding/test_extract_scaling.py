"""Work grows with the length of a response, never with its square, and it is bounded where parsing is concerned."""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

import pytest

from benchmarks.extraction import RESPONSES
from pytest_ddtree.coding.extract.api import run_extraction
from pytest_ddtree.coding.extract.budget import MAX_PARSE_CALLS, MAX_PARSE_CHARS, Work
from pytest_ddtree.coding.extract.choose import Target

SMALL = 300


def steps(text: str) -> tuple[int, Work]:
    """Calls that one extraction makes, Python's and C's, and its own counters."""
    calls = 0

    def count(_frame: FrameType, event: str, _argument: Any) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    work = Work()
    before = sys.getprofile()
    sys.setprofile(count)
    try:
        run_extraction(text, Target("target", False), work=work)
    finally:
        sys.setprofile(before)
    return calls, work


@pytest.mark.parametrize("kind", RESPONSES)
def test_four_times_the_lines_are_about_four_times_the_work(kind: str) -> None:
    make = RESPONSES[kind]
    short, long = make(SMALL), make(4 * SMALL)
    growth = len(long) / len(short)
    few, small = steps(short)
    many, large = steps(long)
    assert many <= 1.6 * growth * few + 2_000
    assert large.scanned <= 1.6 * growth * small.scanned + 2_000
    assert large.fence_lines <= 1.6 * growth * small.fence_lines + 200
    assert large.scanned <= 6 * len(long) + 40_000


@pytest.mark.parametrize("kind", RESPONSES)
def test_parsing_is_bounded(kind: str) -> None:
    _, work = steps(RESPONSES[kind](4 * SMALL))
    assert work.parse_calls <= MAX_PARSE_CALLS
    assert work.parsed <= MAX_PARSE_CHARS


def test_twenty_thousand_lines_of_prose_cost_a_handful_of_calls_a_line() -> None:
    calls, work = steps(RESPONSES["prose"](20_000))
    assert calls < 2 * 20_000
    assert work.parse_calls <= 2


def test_the_counter_sees_a_quadratic_loop() -> None:
    """The measure itself: a loop over all pairs of lines would break the bound above."""

    def pairs(n: int) -> int:
        calls = 0

        def count(_frame: FrameType, event: str, _argument: Any) -> None:
            nonlocal calls
            calls += event in ("call", "c_call")

        before = sys.getprofile()
        sys.setprofile(count)
        try:
            for i in range(n):
                for j in range(n):
                    max(i, j)
        finally:
            sys.setprofile(before)
        return calls

    assert pairs(160) > 1.6 * 4 * pairs(40)
