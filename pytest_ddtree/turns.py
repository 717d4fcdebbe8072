"""In which order the configs of a sweep take their turns. Pure, and light: it is read whenever pytest starts."""

from __future__ import annotations

import random
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import TypeVar

T = TypeVar("T", bound=Hashable)

CANDIDATES = 300
"""Orders that are tried for a fair one."""


def fair(things: Sequence[T], features: Callable[[T], Sequence[float | None]]) -> tuple[T, ...]:
    """The things in an order in which no feature goes up or down with the place, as far as their number allows; the first stays first.

    A machine that gets steadily slower would else make the largest budget, measured last, look slow. None: a thing does not have that
    feature. The same things always get the same order.
    """
    first, rest = things[:1], list(things[1:])
    if len(rest) < 2:
        return tuple(things)
    columns = {thing: tuple(features(thing)) for thing in things}
    generator = random.Random(len(things))
    best = tuple(things)
    least = _leaning(best, columns)
    for _ in range(CANDIDATES):
        generator.shuffle(rest)
        candidate = (*first, *rest)
        leaning = _leaning(candidate, columns)
        if leaning < least - 1e-9:
            best, least = candidate, leaning
    return best


def _leaning(things: Sequence[T], columns: Mapping[T, Sequence[float | None]]) -> float:
    """The largest correlation of a feature with the place, as an absolute value; features that never change have none."""
    found = 0.0
    for column in zip(*(columns[thing] for thing in things), strict=True):
        having = [(place, value) for place, value in enumerate(column) if value is not None]
        if len({value for _, value in having}) > 1:
            found = max(found, abs(_correlation(having)))
    return found


def _correlation(pairs: Sequence[tuple[float, float]]) -> float:
    """Pearson's correlation; neither side may be constant."""
    count = len(pairs)
    left, right = sum(x for x, _ in pairs) / count, sum(y for _, y in pairs) / count
    both = sum((x - left) * (y - right) for x, y in pairs)
    squares = sum((x - left) ** 2 for x, _ in pairs) * sum((y - right) ** 2 for _, y in pairs)
    return float(both / squares**0.5)
