"""Statistics of rounds: means with intervals and ratios with intervals. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from pytest_ddtree import tails


@dataclass(frozen=True, slots=True)
class Interval:
    """A figure with its confidence interval and the number of rounds behind it; one round has no interval (NaN bounds)."""

    value: float
    low: float
    high: float
    n: int

    @property
    def half_width(self) -> float:
        """Half the width of the interval relative to the figure: 0.02 is +-2 %; infinite for one round."""
        if math.isnan(self.low) or self.value == 0:
            return math.inf
        return (self.high - self.low) / 2.0 / abs(self.value)


def log_mean(values: Sequence[float], *, confidence: float = 0.95) -> Interval:
    """Geometric mean of positive rates with the t interval of their logarithms (rates vary by factors, not by amounts).

    Raises:
        ValueError: no value, or one that is not positive.
    """
    if not values or any(value <= 0 for value in values):
        raise ValueError(f"rates must be positive and at least one: {list(values)}")
    logs = [math.log(value) for value in values]
    mean = sum(logs) / len(logs)
    if len(logs) == 1:
        return Interval(math.exp(mean), math.nan, math.nan, 1)
    error = _standard_error(logs)
    reach = tails.t_quantile(0.5 + confidence / 2, len(logs) - 1) * error
    return Interval(math.exp(mean), math.exp(mean - reach), math.exp(mean + reach), len(logs))


def ratio(candidate: Sequence[float], base: Sequence[float], *, confidence: float = 0.95) -> Interval:
    """candidate / base of positive rates, with Welch's t interval of the difference of logarithms.

    `n` is the smaller number of rounds. With one round on either side there is no interval.
    """
    if min(len(candidate), len(base)) == 0 or any(value <= 0 for value in (*candidate, *base)):
        raise ValueError("rates must be positive and at least one on each side")
    a = [math.log(value) for value in candidate]
    b = [math.log(value) for value in base]
    difference = sum(a) / len(a) - sum(b) / len(b)
    n = min(len(a), len(b))
    if n == 1:
        return Interval(math.exp(difference), math.nan, math.nan, 1)
    var_a, var_b = _standard_error(a) ** 2, _standard_error(b) ** 2
    if var_a + var_b == 0:
        return Interval(math.exp(difference), math.exp(difference), math.exp(difference), n)
    freedom = (var_a + var_b) ** 2 / (var_a**2 / (len(a) - 1) + var_b**2 / (len(b) - 1))
    reach = tails.t_quantile(0.5 + confidence / 2, freedom) * math.sqrt(var_a + var_b)
    return Interval(math.exp(difference), math.exp(difference - reach), math.exp(difference + reach), n)


def _standard_error(values: Sequence[float]) -> float:
    mean = sum(values) / len(values)
    return math.sqrt(sum((value - mean) ** 2 for value in values) / (len(values) - 1) / len(values))


OUTLYING = 4.0
"""Robust standard deviations from the median at which a round is worth a look: 1 in 16,000 normal ones."""
LEAST_OUTLYING = 0.03
"""Relative distance from the median below which no round is an outlier: rounds that agree better than that look odd for nothing."""


def outliers(rates: Sequence[float]) -> tuple[int, ...]:
    """Which of these positive rates are far from the others: by the median absolute deviation of their logarithms (Hampel).

    Of fewer than four nobody can say.
    """
    if len(rates) < 4:
        return ()
    logs = [math.log(rate) for rate in rates]
    middle = median(logs)
    distances = [abs(log - middle) for log in logs]
    limit = max(OUTLYING * 1.4826 * median(distances), math.log1p(LEAST_OUTLYING))
    return tuple(at for at, distance in enumerate(distances) if distance > limit)
