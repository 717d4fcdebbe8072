"""How much a restart alone moves a figure, and so which loss may be called one. Pure.

Within one start, or in A B B A of two builds, a metric's own tolerance holds. Across sessions the server was started anew: the
tolerance is at least max(3 %, 4 x the start-to-start deviation), the deviation from at least 5 starts of unchanged builds, and 10 %
while there are fewer.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

ENOUGH_STARTS = 5
FEW_STARTS = 0.10
LEAST = 0.03
TIMES = 4.0


@dataclass(frozen=True, slots=True)
class Tolerance:
    """A loss that is accepted, as a share, and where it comes from, for the report."""

    share: float
    why: str

    def __str__(self) -> str:
        return f"{self.share:.1%} ({self.why})"


@dataclass(frozen=True, slots=True)
class StartSpread:
    """Standard deviation of log figures between starts of the same build, from `starts` starts."""

    deviation: float
    starts: int


def start_spread(figures: Iterable[tuple[str, float]]) -> StartSpread:
    """The deviation between starts from (build, figure of one start); pooled within builds, so that a real change is no noise.

    A build with a single start tells nothing. The deviation is NaN when no build has two.
    """
    groups: dict[str, list[float]] = {}
    for build, figure in figures:
        groups.setdefault(build, []).append(math.log(figure))
    several = [group for group in groups.values() if len(group) > 1]
    starts = sum(len(group) for group in several)
    freedom = starts - len(several)
    if freedom == 0:
        return StartSpread(math.nan, starts)
    squares = math.fsum((value - math.fsum(group) / len(group)) ** 2 for group in several for value in group)
    return StartSpread(math.sqrt(squares / freedom), starts)


def across_sessions(own: float, spread: StartSpread) -> Tolerance:
    """The tolerance of a comparison with figures of another session; `own` is the metric's own within a session."""
    if spread.starts < ENOUGH_STARTS:
        share = max(own, FEW_STARTS)
        return Tolerance(
            share, f"{spread.starts} stored starts of one build, fewer than {ENOUGH_STARTS}: {share:.0%}"
        )
    noise = TIMES * spread.deviation
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
    noise = TIMES * spread.deviation * math.sqrt(math.fsum(1 / count for count in starts) / 2)
    if noise <= own:
        return Tolerance(own, "same session")
    return Tolerance(noise, f"same session, {spread.starts} starts deviate by {spread.deviation:.1%}")
