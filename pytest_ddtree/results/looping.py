"""Answers that end in a loop, on both sides of a comparison. Pure."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass
from typing import Self

from pytest_ddtree.grid import CellKey
from pytest_ddtree.results.model import Results, is_baseline

CHANCE = 0.001
"""Two sides that differ more than one pair of healthy ones in a thousand are said to differ."""

WORTH = 0.4
"""What a loop is worth: half of such an answer repeats itself, and a drafter saves most of its steps there."""


@dataclass(frozen=True, slots=True)
class Looping:
    """How many of how many answers loop on each side, of those of which that is known; both answered the same prompts."""

    before: int = 0
    before_of: int = 0
    now: int = 0
    now_of: int = 0

    @classmethod
    def of(cls, before: Results, now: Results, cells: Collection[tuple[str, CellKey]]) -> Self:
        """Of those of these cells, which both sides have, that are speculative: there a loop is worth something."""
        shared = [cell for cell in cells if not is_baseline(cell[0])]
        return cls(*_counted(before, shared), *_counted(now, shared))

    @property
    def p(self) -> float:
        """Fisher's exact test: how often sides that loop equally often are at least so far apart, one-sided, doubled."""
        seen = self.before + self.now
        if not self.before_of or not self.now_of or not seen:
            return 1.0
        above = _tail(self.now, self.now_of, self.before_of, seen)
        below = _tail(self.before, self.before_of, self.now_of, seen)
        return min(1.0, 2 * min(above, below))

    @property
    def flatters(self) -> float:
        """By what share tok/s of `now` over `before` may be too high (below 0: too low)."""
        if not self.before_of or not self.now_of:
            return 0.0
        return WORTH * (self.now / self.now_of - self.before / self.before_of)

    def line(self, before: str, now: str) -> str | None:
        """What a reader must know of it; None where no answer loops, or nobody knows it of one side."""
        if not (self.before or self.now) or not (self.before_of and self.now_of):
            return None
        text = f"answers that end in a loop: {before} {self.before} of {self.before_of}, {now} {self.now} of {self.now_of}"
        if self.p < CHANCE:
            text += f", which chance does not explain (p {self.p:.1g}): the builds say different things, so look at the answers"
        off = f"{abs(self.flatters):.1%}"
        if off == "0.0%":
            return text
        return f"{text}; a drafter predicts loops: the ratio of tok/s may be {'high' if self.flatters >= 0 else 'low'} by {off}"


def _counted(side: Results, cells: Collection[tuple[str, CellKey]]) -> tuple[int, int]:
    """How many of how many answers loop; those that came without token ids say nothing."""
    rounds = [one for cell in cells for one in side.cells[cell].rounds if one.looping is not None]
    return sum(one.looping or 0 for one in rounds), sum(one.requests for one in rounds)


def _tail(least: int, drawn: int, others: int, marked: int) -> float:
    """P(X >= least): of `drawn + others` answers, `marked` of which loop, `drawn` are drawn."""
    most = min(drawn, marked)
    whole = _log_choose(drawn + others, marked)
    return min(
        1.0,
        math.fsum(
            math.exp(_log_choose(drawn, k) + _log_choose(others, marked - k) - whole)
            for k in range(max(least, marked - others), most + 1)
        ),
    )


def _log_choose(n: int, k: int) -> float:
    return math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)
