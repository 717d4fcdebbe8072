"""How many rounds a cell needs: until the interval of its tok/s is narrow enough, or a cap is hit."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Verdict = Literal["more", "precise", "max_rounds", "max_seconds"]
"""Go on, or why not."""


@dataclass(frozen=True, slots=True)
class Interval:
    """A confidence interval of a rate, from its logarithms, so that it is symmetric in ratios."""

    n: int
    centre: float
    low: float
    high: float
    confidence: float

    @property
    def relative(self) -> float:
        """Half its width as a share of the centre (upwards, which is the larger side)."""
        return self.high / self.centre - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingRule:
    """When to stop. `precision` is the half width aimed at, as a share of the rate.

    A fixed number of rounds has both bounds alike; one alone has no interval, and is part of what several calls measure.
    """

    precision: float = 0.02
    confidence: float = 0.95
    min_rounds: int = 4
    max_rounds: int = 30
    max_seconds: float | None = None

    def __post_init__(self) -> None:
        if not 0 < self.precision < 1 or not 0 < self.confidence < 1:
            raise ValueError("precision and confidence are shares between 0 and 1")
        fixed = self.min_rounds == self.max_rounds
        if not (1 if fixed else 2) <= self.min_rounds <= self.max_rounds:
            raise ValueError(
                f"rounds: at least {self.min_rounds}, at most {self.max_rounds}; an interval needs two, and most is no less than least"
            )


@dataclass(frozen=True, slots=True)
class Decision:
    """What to do after the rounds so far, and the interval that they give (None for fewer than two)."""

    verdict: Verdict
    interval: Interval | None

    @property
    def stop(self) -> bool:
        return self.verdict != "more"

    def __str__(self) -> str:
        if self.interval is None:
            return "too few rounds for an interval" + {
                "max_rounds": ": stopped at the cap of rounds",
                "max_seconds": ": stopped at the cap of time",
            }.get(self.verdict, "")
        reached = f"+-{self.interval.relative:.1%} after {self.interval.n} rounds"
        return {
            "more": f"{reached} so far",
            "precise": reached,
            "max_rounds": f"{reached}: stopped at the cap of rounds, not at the precision asked for",
            "max_seconds": f"{reached}: stopped at the cap of time, not at the precision asked for",
        }[self.verdict]


def rate_interval(rates: Sequence[float], confidence: float = 0.95) -> Interval | None:
    """Student's t-interval of the mean log rate, as rates; None for fewer than two. Rates must be positive."""
    if any(rate <= 0 for rate in rates):
        raise ValueError(
            "a rate of zero has no logarithm: a round in which nothing was produced is a failure"
        )
    n = len(rates)
    if n < 2:
        return None
    logs = [math.log(rate) for rate in rates]
    mean = math.fsum(logs) / n
    deviation = math.sqrt(math.fsum((log - mean) ** 2 for log in logs) / (n - 1))
    half = _student(confidence, n - 1) * deviation / math.sqrt(n)
    return Interval(n, math.exp(mean), math.exp(mean - half), math.exp(mean + half), confidence)


def _student(confidence: float, freedom: int) -> float:
    """The two-sided quantile of Student's t."""
    # Imported late: it costs more than everything else that a client needs to start.
    from pytest_ddtree.tails import t_quantile

    return t_quantile((1 + confidence) / 2, freedom)


def decide(
    rates: Sequence[float], rule: SamplingRule, *, elapsed_s: float = 0.0, next_s: float = 0.0
) -> Decision:
    """Whether another round is worth it.

    `elapsed_s` are the seconds that the cell has taken so far, `next_s` those that another round will take.
    """
    interval = rate_interval(rates, rule.confidence)
    if len(rates) >= rule.min_rounds and interval is not None and interval.relative <= rule.precision:
        return Decision("precise", interval)
    if len(rates) >= rule.max_rounds:
        return Decision("max_rounds", interval)
    if rule.max_seconds is not None and rates and elapsed_s + next_s > rule.max_seconds:
        return Decision("max_seconds", interval)
    return Decision("more", interval)
