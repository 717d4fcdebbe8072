"""Tail probabilities and quantiles that verdicts and gates use, by `scipy.special`.

`scipy.stats` has them all, but importing it takes half a second of every session, also of one that is refused. The formulas are
those of Abramowitz and Stegun, Handbook of Mathematical Functions, chapter 26; the tests compare each with `scipy.stats`.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

Floats = NDArray[np.float64]


def normal_sf(z: float) -> float:
    """P(Z > z) of a standard normal variable."""
    return float(special.ndtr(-z))


def t_cdf(t: float, freedom: float) -> float:
    """P(T <= t) of Student's t."""
    return float(special.stdtr(freedom, t))


def t_quantile(probability: float, freedom: float) -> float:
    """The t that Student's t stays below with this probability."""
    return float(special.stdtrit(freedom, probability))


def t_shift(limit: float, freedom: float, power: float) -> float:
    """How many standard errors a mean must be from zero for its t to be above `limit` with this power: the error is estimated too.

    The noncentrality of Student's t (Johnson, Kotz and Balakrishnan, Continuous Univariate Distributions 2, chapter 31), by the mean of
    Phi(shift - limit * s) over the distribution of the estimated error s. `special.nctdtrinc` does not come back for large limits.
    """
    places = (np.arange(_PLACES) + 0.5) / _PLACES
    errors = np.sqrt(special.chdtri(freedom, 1.0 - places) / freedom)
    low, high = 0.0, float(limit * errors[-1]) + 10.0
    for _ in range(60):
        middle = (low + high) / 2
        found = float(special.ndtr(middle - limit * errors).mean())
        low, high = (middle, high) if found < power else (low, middle)
    return (low + high) / 2


_PLACES = 2000
"""Quantiles of the estimated error that stand for its distribution."""


def f_sf(ratio: float, freedom: float, below: float) -> float:
    """P(F > ratio) with `freedom` degrees of freedom over `below` ones."""
    return float(special.fdtrc(freedom, below, ratio))


def chi2_sf(value: float, freedom: float) -> float:
    """P(chi-square > value)."""
    return float(special.chdtrc(freedom, value))


def chi2_quantile(probability: float, freedom: float) -> float:
    """The value that chi-square stays below with this probability."""
    return float(special.chdtri(freedom, 1.0 - probability))


def binomial_sf(count: int, trials: int, probability: float) -> float:
    """P(more than `count` successes)."""
    return float(special.bdtrc(count, trials, probability))


def poisson_sf(count: ArrayLike, mean: ArrayLike) -> Floats:
    """P(more than `count` events), shapes as given; `count` -1 is certain."""
    counts = np.asarray(count, dtype=np.float64)
    # The regularised incomplete gamma function is a Poisson tail (26.4.21); its first argument must be positive.
    tail = special.gammainc(np.maximum(counts + 1.0, 1.0), np.asarray(mean, dtype=np.float64))
    return np.asarray(np.where(counts < 0, 1.0, tail), dtype=np.float64)


def negative_binomial_sf(count: ArrayLike, size: ArrayLike, probability: float) -> Floats:
    """P(more than `count` failures before `size` successes of this probability), shapes as given; `size` may be any positive number."""
    counts = np.asarray(count, dtype=np.float64)
    tail = special.betainc(
        np.maximum(counts + 1.0, 1.0), np.asarray(size, dtype=np.float64), 1.0 - probability
    )
    return np.asarray(np.where(counts < 0, 1.0, tail), dtype=np.float64)
