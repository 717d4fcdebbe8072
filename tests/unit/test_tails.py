"""Tails and quantiles against scipy.stats, which the package itself does not import for them."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from pytest_ddtree import tails

probabilities = st.floats(1e-9, 1 - 1e-9)
freedoms = st.floats(1, 5000)
counts = st.integers(-1, 3000)


def close(found: float, expected: float) -> bool:
    return found == pytest.approx(expected, rel=1e-6, abs=1e-250)


@given(st.floats(-35, 35), freedoms)
def test_normal_and_students_t(value: float, freedom: float) -> None:
    assert close(tails.normal_sf(value), stats.norm.sf(value))
    assert close(tails.t_cdf(value, freedom), stats.t.cdf(value, freedom))


@given(probabilities, freedoms)
def test_quantiles(probability: float, freedom: float) -> None:
    t = tails.t_quantile(probability, freedom)
    assert t == pytest.approx(stats.t.ppf(probability, freedom), rel=1e-6, abs=1e-9)
    # 1 - p is what is handed on: no more digits of a tiny p are left than that has.
    assert tails.chi2_quantile(probability, freedom) == pytest.approx(
        stats.chi2.ppf(probability, freedom), rel=1e-5
    )


@given(st.floats(1, 40), st.floats(1, 60), st.floats(0.5, 0.99))
def test_a_shift_is_the_noncentrality_of_students_t(limit: float, freedom: float, power: float) -> None:
    shift = tails.t_shift(limit, freedom, power)
    assert stats.nct.sf(limit, freedom, shift) == pytest.approx(power, abs=2e-3)


@pytest.mark.parametrize(("alpha", "freedom"), [(1e-6, 1.0), (1e-5, 2.0), (0.05, 1e6)])
def test_a_shift_comes_back_for_every_limit(alpha: float, freedom: float) -> None:
    limit = tails.t_quantile(1 - alpha, freedom)
    shift = tails.t_shift(limit, freedom, 0.95)
    if freedom > 1e3:
        assert shift == pytest.approx(limit + tails.t_quantile(0.95, freedom), rel=1e-3)
    else:
        # Nothing but the error's own spread counts there.
        assert shift == pytest.approx(limit * (stats.chi2.ppf(0.95, freedom) / freedom) ** 0.5, rel=2e-3)


@given(st.floats(0, 1e4), freedoms, freedoms)
def test_ratios_and_squares(value: float, freedom: float, below: float) -> None:
    assert close(tails.chi2_sf(value, freedom), stats.chi2.sf(value, freedom))
    assert close(tails.f_sf(value, freedom, below), stats.f.sf(value, freedom, below))


@given(counts, st.integers(1, 3000), probabilities)
def test_binomial(count: int, trials: int, probability: float) -> None:
    if count <= trials:
        expected = stats.binom.sf(count, trials, probability)
        assert tails.binomial_sf(count, trials, probability) == pytest.approx(expected, rel=1e-6, abs=1e-250)


@given(counts, st.floats(1e-300, 3000))
def test_poisson(count: int, mean: float) -> None:
    assert close(float(tails.poisson_sf(count, mean)), stats.poisson.sf(count, mean))


@given(counts, st.floats(1e-6, 3000), st.floats(1e-3, 1 - 1e-9))
def test_negative_binomial(count: int, size: float, probability: float) -> None:
    found = float(tails.negative_binomial_sf(count, size, probability))
    assert close(found, stats.nbinom.sf(count, size, probability))


def test_shapes_are_kept() -> None:
    count, mean = np.array([[-1, 0, 3]]), np.array([[1.0], [2.0]])
    assert np.allclose(tails.poisson_sf(count, mean), stats.poisson.sf(count, mean))
    assert np.allclose(tails.negative_binomial_sf(count, mean, 0.3), stats.nbinom.sf(count, mean, 0.3))


def test_a_verdict_needs_no_scipy_stats() -> None:
    modules = "exactness.rule, pytest_ddtree.exactness.contract.catalogue, pytest_ddtree.results.compare"
    code = f"import sys, pytest_ddtree.{modules}; sys.exit('scipy.stats' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
