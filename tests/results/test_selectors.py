from __future__ import annotations

import math
import random

import pytest

from pytest_ddtree.grid import CellKey
from pytest_ddtree.results.selectors import (
    Selector,
    SelectorError,
    check_selector,
    headline_cells,
    parse_selector,
)
from pytest_ddtree.results.thresholds import (
    ThresholdError,
    check_thresholds,
    judge_threshold,
    parse_threshold,
)

CONFIGS = ("baseline", "chain-wnone", "b8-k4-wnone", "b80-k4-wnone")
CELLS = tuple(CellKey(context, width) for context in (60, 1024, 8192) for width in (1, 8, 32))


def test_a_selector_takes_what_it_says() -> None:
    one = parse_selector("b8-k4 c=1 ctx=1024")
    assert one == Selector("b8-k4", 1024, 1)
    assert one.takes("b8-k4-wnone", CellKey(1024, 1))
    assert not one.takes("b80-k4-wnone", CellKey(1024, 1))
    assert not one.takes("b8-k4-wnone", CellKey(1024, 8))
    assert parse_selector("ctx60-c8").takes("anything", CellKey(60, 8))
    assert parse_selector("b8*").takes_config("b80-k4-wnone")
    assert not parse_selector("b8").takes_config("b80-k4-wnone")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("b9-k4", "no config 'b9-k4'"),
        ("b8-k4-wnon", "did you mean b8-k4-wnone"),
        ("ctx=1000", "there are 60, 1024, 8192"),
        ("c=2", "no cell with c=2"),
        ("c=8 c=1", "twice"),
        ("c=x", "whole number"),
        ("budget=8", "there are c=, ctx="),
    ],
)
def test_a_selector_that_fits_nothing_is_refused(text: str, words: str) -> None:
    with pytest.raises(SelectorError, match=words):
        check_selector(parse_selector(text), CONFIGS, CELLS)


def test_headlines_by_default_are_the_middle_context_at_both_ends() -> None:
    assert headline_cells((), CONFIGS[:3], CELLS) == tuple(
        (config, CellKey(1024, width)) for config in CONFIGS[1:3] for width in (1, 32)
    )
    assert len(headline_cells((), [f"b{n}-k4-wnone" for n in range(1, 20)], CELLS)) == 6


def test_headlines_are_a_handful() -> None:
    assert headline_cells(["b8-k4 ctx60-c8"], CONFIGS, CELLS) == (("b8-k4-wnone", CellKey(60, 8)),)
    assert headline_cells(["baseline ctx60-c8"], CONFIGS, CELLS) == (("baseline", CellKey(60, 8)),)
    with pytest.raises(SelectorError, match="9 headline cells"):
        headline_cells(["c=1"], CONFIGS, CELLS)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("tok >= 140", "did you mean tok_s"),
        ("tok_s <= 140", "higher is better"),
        ("ttft_p90_ms >= 100", "lower is better"),
        ("tok_s >= fast", "no number"),
        ("tok_s >= -1", "positive"),
        ("tok_s >= nan", "positive"),
        ("tok_s 140", "form"),
        ("tok_s >= 140 @ c=2", "no cell with c=2"),
        ("accept_length >= 3 @ baseline", "no cell of the grid has this metric"),
        ("tok_s >= 1 @ b9-k4", "no config"),
    ],
)
def test_a_threshold_with_a_mistake_is_refused_and_quoted(text: str, words: str) -> None:
    with pytest.raises(ThresholdError, match=words) as caught:
        check_thresholds([parse_threshold(text)], CONFIGS, CELLS)
    assert text in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        "tok_s >= 140 @ b8-k4 c=1 ctx=1024",
        "speedup >= 1.4",
        "accept_length>=3.0",
        "ttft_p90_ms <= 250 @ c=32",
    ],
)
def test_a_threshold_of_the_grid_is_taken(text: str) -> None:
    check_thresholds([parse_threshold(text)], CONFIGS, CELLS)


def test_a_threshold_is_judged_by_its_interval_and_a_missing_metric_is_no_pass() -> None:
    key = CellKey(1024, 1)
    of = parse_threshold("tok_s >= 100 @ b8-k4")
    outcomes = {
        "fine": {0: 120.0, 1: 121.0, 2: 119.0},
        "regressed": {0: 80.0, 1: 81.0, 2: 79.0},
        "undecided": {0: 90.0, 1: 115.0, 2: 99.0},
        "missing": {},
    }
    for outcome, values in outcomes.items():
        result = judge_threshold(of, "b8-k4-wnone", key, values)
        assert result.outcome == outcome
        assert "tok_s >= 100 @ b8-k4" in result.text
    low = parse_threshold("ttft_p90_ms <= 100")
    assert judge_threshold(low, "b8-k4-wnone", key, {0: 90.0}).outcome == "fine"
    assert judge_threshold(low, "b8-k4-wnone", key, {0: 110.0}).outcome == "regressed"
    assert not low.takes("baseline", key)


def test_no_baseline_is_a_headline_by_itself_of_whatever_group() -> None:
    configs = ("baseline", "b8-k4-wnone", "baseline@group1", "b16-k4-wnone")
    assert {config for config, _ in headline_cells((), configs, CELLS)} == {"b8-k4-wnone", "b16-k4-wnone"}
    assert not parse_threshold("tok_s >= 1").takes("baseline@group1", CELLS[0])
    assert not parse_threshold("speedup >= 1 @ b*").takes("baseline@group1", CELLS[0])


@pytest.mark.parametrize("n", [2, 4, 16])
def test_a_figure_that_would_have_been_told_from_a_bound_is_told_so_often(n: int) -> None:
    """At half the width of an interval it would be one session of two."""
    generator, noise, key = random.Random(4), 0.004, CellKey(60, 4)
    threshold = parse_threshold("tok_s >= 100")
    spread = [math.sqrt((n - 1) / n) * noise * (1 if number % 2 else -1) for number in range(n)]
    typical = judge_threshold(
        threshold, "b8", key, {number: 100 * math.exp(one) for number, one in enumerate(spread)}
    )
    visible = typical.as_json()["smallest_visible"]
    outcomes = [
        judge_threshold(
            threshold,
            "b8",
            key,
            {number: 100 * (1 - visible) * math.exp(generator.gauss(0, noise)) for number in range(n)},
        ).outcome
        for _ in range(1000)
    ]
    assert 920 <= outcomes.count("regressed") <= 975
