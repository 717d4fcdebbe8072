"""Loops on both sides of a comparison: told, and told apart from chance."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from made import KEY, a_cell
from scipy.stats import fisher_exact

from pytest_ddtree.results.looping import Looping
from pytest_ddtree.results.model import Results

counts = st.tuples(st.integers(0, 200), st.integers(1, 200)).map(lambda one: (min(one), one[1]))


@given(counts, counts)
def test_p_is_fishers_one_sided_doubled(before: tuple[int, int], now: tuple[int, int]) -> None:
    found = Looping(*before, *now).p
    table = [[now[0], now[1] - now[0]], [before[0], before[1] - before[0]]]
    sides = [float(fisher_exact(table, alternative=side).pvalue) for side in ("greater", "less")]
    assert found == pytest.approx(min(1.0, 2 * min(sides)), rel=1e-6, abs=1e-12)
    assert found == pytest.approx(Looping(*now, *before).p)


def test_one_answer_of_ten_on_one_side_is_no_chance_and_one_of_many_is() -> None:
    assert "which chance does not explain" in str(Looping(0, 128, 13, 128).line("base", "patched"))
    alone = str(Looping(0, 128, 1, 128).line("base", "patched"))
    assert alone.startswith("answers that end in a loop: base 0 of 128, patched 1 of 128; a drafter")
    assert "chance" not in alone


def test_nothing_loops_and_nothing_is_said() -> None:
    assert Looping(0, 128, 0, 128).line("base", "patched") is None
    assert Looping().line("base", "patched") is None


def test_the_ratio_is_flattered_by_the_side_that_loops_more() -> None:
    high = Looping(0, 100, 10, 100)
    assert math.isclose(high.flatters, 0.04)
    assert str(Looping(5, 100, 5, 100).line("a", "b")).endswith("b 5 of 100")
    assert "may be low by 4.0%" in str(replace(high, before=20).line("a", "b"))


def test_answers_without_token_ids_do_not_count_as_answers_without_a_loop() -> None:
    cell = ("b8-k4-wnone", KEY)
    told, untold = (Results(cells={cell: a_cell([500.0, 500.0], looping=one)}) for one in (4, None))
    assert Looping.of(told, untold, [cell]) == Looping(8, 8, 0, 0)
    assert Looping.of(told, untold, [cell]).line("base", "patched") is None
    assert Looping.of(told, told, [cell]).line("base", "patched") is not None
