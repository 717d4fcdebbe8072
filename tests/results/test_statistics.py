from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_ddtree.results.statistics import log_mean, outliers, ratio

RATES = st.lists(st.floats(1e-3, 1e6), min_size=2, max_size=12)


def test_one_round_has_no_interval() -> None:
    one = log_mean([100.0])
    assert one.value == pytest.approx(100.0)
    assert math.isnan(one.low)
    assert math.isinf(one.half_width)


@pytest.mark.parametrize("values", [[], [0.0], [1.0, -2.0]], ids=str)
def test_what_is_no_rate_is_refused(values: list[float]) -> None:
    with pytest.raises(ValueError, match="positive"):
        log_mean(values)


@given(RATES, st.floats(0.01, 100.0))
def test_scaling_the_rates_scales_figure_and_interval(rates: list[float], factor: float) -> None:
    one, other = log_mean(rates), log_mean([rate * factor for rate in rates])
    assert other.value == pytest.approx(one.value * factor, rel=1e-6)
    assert other.low == pytest.approx(one.low * factor, rel=1e-6)


@given(RATES, RATES)
def test_a_ratio_turned_round_is_the_inverse(a: list[float], b: list[float]) -> None:
    one, other = ratio(a, b), ratio(b, a)
    assert one.value * other.value == pytest.approx(1.0, rel=1e-6)
    assert one.low <= one.value <= one.high or math.isnan(one.low)


def test_the_interval_of_a_ratio_covers_the_truth_as_often_as_it_says() -> None:
    generator = np.random.default_rng(1)
    covered = 0
    for _ in range(2000):
        a = np.exp(generator.normal(0.1, 0.05, 4))
        b = np.exp(generator.normal(0.0, 0.02, 3))
        interval = ratio(list(a), list(b))
        covered += interval.low <= math.exp(0.1) <= interval.high
    assert 0.93 <= covered / 2000 <= 0.98


def test_a_round_far_from_the_others_is_an_outlier() -> None:
    assert outliers([100.0, 101.0, 99.5, 100.4, 70.0]) == (4,)
    assert outliers([100.0, 100.0, 100.0, 100.0, 102.0]) == ()
    assert outliers([100.0, 101.0, 70.0]) == ()


@given(st.lists(st.floats(1.0, 1e6), min_size=4, max_size=12), st.floats(0.01, 100.0))
def test_outliers_depend_on_ratios_alone_and_are_the_minority(rates: list[float], factor: float) -> None:
    found = outliers(rates)
    assert len(found) <= len(rates) / 2
    assert len(outliers([rate * factor for rate in rates])) <= len(rates) / 2
    assert outliers(rates[:1] * len(rates)) == ()
