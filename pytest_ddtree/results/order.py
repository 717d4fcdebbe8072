"""The order of configs, builds and repeats, so that a machine that drifts favours none of them. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from pytest_ddtree.grid import CellKey
from pytest_ddtree.results.metrics import Values
from pytest_ddtree.results.model import Round
from pytest_ddtree.results.paired import Loss, paired_loss
from pytest_ddtree.results.scale import signed

T = TypeVar("T")


def mirrored(things: Sequence[T], repeats: int) -> tuple[T, ...]:
    """`repeats` passes over the things, every second one backwards: A B B A, A B C C B A.

    With an even number of passes each thing has the same mean place, so that a drift that grows evenly cancels. A mirrored order
    also saves starts: the last of a pass is the first of the next.
    """
    if repeats < 1:
        raise ValueError("at least one pass")
    return tuple(
        thing for number in range(repeats) for thing in (things if number % 2 == 0 else reversed(things))
    )


@dataclass(frozen=True, slots=True)
class Block:
    """One stay of a build on the machine: which rounds of every cell it measures. The same pass of the other builds has the same."""

    build: str
    number: int
    """Which pass over the builds this is, from 0."""
    first_round: int
    rounds: int


def blocks(builds: Sequence[str], *, passes: int, rounds: int) -> tuple[Block, ...]:
    """The stays of a comparison of builds: A B B A for two passes; `rounds` is how many rounds of a cell one stay measures.

    Raises:
        ValueError: fewer than two builds, a name twice, or an odd number of passes, in which drift does not cancel.
    """
    if len(builds) < 2 or len(set(builds)) < len(builds):
        raise ValueError(
            f"a comparison needs two builds of different names, not {', '.join(builds) or 'none'}"
        )
    if passes < 2 or passes % 2:
        raise ValueError(f"an even number of passes, at least 2, not {passes}: A B alone has the drift in it")
    order = mirrored(builds, passes)
    return tuple(
        Block(build, place // len(builds), place // len(builds) * rounds, rounds)
        for place, build in enumerate(order)
    )


def turns(
    up: Sequence[Block], builds: Sequence[str], cells: Sequence[CellKey]
) -> tuple[tuple[int, CellKey, str], ...]:
    """One pass of builds whose servers are up at once: (rounds that the cell has then, cell, build), in order.

    Who comes second finds the machine warmer: A B, B A from cell to cell and from round to round, by the number of the round, so
    that over an even number of passes each build comes first as often in every cell, also with an odd number of rounds a stay.
    """
    order = sorted((one.build for one in up), key=builds.index)
    first, rounds = up[0].first_round, up[0].rounds
    return tuple(
        (number + 1, key, build)
        for number in range(first, first + rounds)
        for place, key in enumerate(cells)
        for build in (order if (number + place) % 2 == 0 else reversed(order))
    )


def drift_cells(cells: Sequence[CellKey], seconds: float, left: float, *, most: int) -> tuple[CellKey, ...]:
    """The baseline cells to measure again at the end, `most` at most: the extremes, then what fits in between; one alone is the middle one.

    `seconds` is what one cell took, `left` what the time budget still allows (infinite without one).
    """
    if seconds <= 0:
        raise ValueError("a cell takes time")
    fits = most if math.isinf(left) else max(0, int(left // seconds))
    count = min(fits, most, len(cells))
    if count == 0:
        return ()
    ordered = sorted(cells, key=lambda cell: (cell.context * cell.concurrency, cell))
    if count == 1:
        return (ordered[len(ordered) // 2],)
    places = sorted({round(index * (len(ordered) - 1) / (count - 1)) for index in range(count)})
    return tuple(ordered[place] for place in places)


@dataclass(frozen=True, slots=True)
class Drift:
    """What the machine did to the baseline between the beginning and the end of a session."""

    config: str
    key: CellKey
    loss: Loss

    def beyond(self, share: float) -> bool:
        """Whether the whole 95 % interval is further from no change than this share."""
        if math.isinf(self.loss.error):
            return False
        limit = -math.log1p(-share)
        return self.loss.at_least(0.025) > limit or self.loss.at_most(0.025) < -limit

    def __str__(self) -> str:
        change = math.expm1(-self.loss.mean)
        if math.isinf(self.loss.error):
            return f"drift of {self.config} {self.key.id}: {signed(change)} tok/s from beginning to end (one round)"
        low, high = (math.expm1(-bound) for bound in (self.loss.at_most(0.025), self.loss.at_least(0.025)))
        return (
            f"drift of {self.config} {self.key.id}: {signed(change)} tok/s from beginning to end, "
            f"95% interval {signed(low)} to {signed(high)}"
        )


def drifts(rounds: Iterable[Round]) -> tuple[Drift, ...]:
    """The drift of every cell that was measured again, paired by round."""
    first: dict[tuple[str, CellKey], Values] = {}
    again: dict[tuple[str, CellKey], Values] = {}
    for one in rounds:
        side = first if one.again == 0 else again
        # The last repeat is the farthest from the beginning.
        side.setdefault((one.config, one.key), {})[one.number] = one.tok_s
    found = []
    for (config, key), now in again.items():
        loss = paired_loss(first.get((config, key), {}), now, higher_is_better=True)
        if loss is not None:
            found.append(Drift(config, key, loss))
    return tuple(found)
