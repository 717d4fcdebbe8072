"""How much a restart alone moves a figure, and so which loss may be called one. Pure.

Within one start, or in A B B A of two builds, a metric's own tolerance holds. Across sessions the server was started anew: the
tolerance is at least max(3 %, 4 x the start-to-start deviation), the deviation from at least 5 starts of unchanged builds, and 10 %
while there are fewer.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pytest_ddtree.results.metrics import Values

ENOUGH_STARTS = 5
ENOUGH_ROUNDS = 4
"""A start with fewer says little of what a start does: the noise of its rounds is larger."""
FEW_STARTS = 0.10
LEAST = 0.03
TIMES = 4.0


@dataclass(frozen=True, slots=True)
class Tolerance:
    """A loss that is accepted, as a share, and where it comes from, for the report."""

    share: float
    why: str


@dataclass(frozen=True, slots=True)
class Start:
    """What one start of a build measured of one metric of one cell."""

    build: str
    values: Values
    """By round number: the same number has the same prompts."""
    run: str | None = None
    """The stored run it belongs to; None where nobody knows."""


@dataclass(frozen=True, slots=True)
class StartSpread:
    """Standard deviation of log figures between starts of the same build, from `starts` starts."""

    deviation: float
    starts: int


def start_spread(starts: Iterable[Start]) -> StartSpread:
    """The deviation between starts; pooled within builds, so that a real change is no noise.

    Starts are compared by the rounds that all of their build have (those with few rounds are left out), because other rounds have other
    prompts, which is no noise of starts either. A run that is given twice counts once. A build with a single start tells nothing. The
    deviation is NaN when no build has two.
    """
    groups: dict[str, list[Values]] = {}
    runs: set[str] = set()
    for start in starts:
        if start.run is not None and start.run in runs:
            continue
        if start.run is not None:
            runs.add(start.run)
        groups.setdefault(start.build, []).append(start.values)
    several = [figures for group in groups.values() if len(figures := _figures(group)) > 1]
    count = sum(len(figures) for figures in several)
    freedom = count - len(several)
    if freedom == 0:
        return StartSpread(math.nan, count)
    squares = math.fsum(
        (value - math.fsum(figures) / len(figures)) ** 2 for figures in several for value in figures
    )
    return StartSpread(math.sqrt(squares / freedom), count)


def _figures(starts: Sequence[Values]) -> list[float]:
    """Logarithm of the figure of each start, over the rounds that all of them have; none where they share no round."""
    long = [values for values in starts if len(values) >= ENOUGH_ROUNDS]
    if len(long) < 2:
        long = list(starts)
    shared = set.intersection(*(set(values) for values in long))
    if not shared:
        return []
    return [math.fsum(math.log(values[number]) for number in shared) / len(shared) for values in long]


UNKNOWN = StartSpread(math.nan, 0)
"""No start is stored."""


def of_all(spreads: Iterable[StartSpread]) -> StartSpread:
    """The spread of the mean of several cells: they share their starts, so it is as noisy as one, of which the least known counts."""
    return max(spreads, key=lambda one: (-one.starts, one.deviation), default=UNKNOWN)


def across_sessions(own: float, spread: StartSpread) -> Tolerance:
    """The tolerance of a comparison with figures of another session; `own` is the metric's own within a session."""
    if spread.starts < ENOUGH_STARTS:
        share = max(own, FEW_STARTS)
        return Tolerance(
            share, f"{spread.starts} stored starts of one build, fewer than {ENOUGH_STARTS}: {share:.0%}"
        )
    # The deviation is one of logarithms; as a share four of them stay below all that can be lost.
    noise = -math.expm1(-TIMES * spread.deviation)
    share = max(own, LEAST, noise)
    if share == noise:
        return Tolerance(
            share, f"{TIMES:g} x {spread.deviation:.1%}, the deviation of {spread.starts} starts"
        )
    return Tolerance(share, f"the least tolerance; {spread.starts} starts deviate by {spread.deviation:.1%}")


def within_session(own: float, starts: Sequence[int] = (), spread: StartSpread | None = None) -> Tolerance:
    """The tolerance of a comparison inside one session.

    `starts` is how many starts stand behind each side when there are two builds: their means are 1/n as noisy. Without a spread
    from enough starts the metric's own tolerance holds.
    """
    if not starts or spread is None or spread.starts < ENOUGH_STARTS:
        return Tolerance(own, "same session")
    means = math.sqrt(math.fsum(1 / count for count in starts) / 2)
    noise = -math.expm1(-TIMES * spread.deviation * means)
    if noise <= own:
        return Tolerance(own, "same session")
    return Tolerance(noise, f"same session, {spread.starts} starts deviate by {spread.deviation:.1%}")
