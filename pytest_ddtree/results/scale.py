"""Shares in words, on the scale of the metric that they are said of. Pure.

A loss is a share of the speed: 1 - now/before of what should be high, 1 - before/now of what should be low. A loss of half of the speed is
-50 % of tok/s, and +100 % of a time: in a sentence beside changes of that time it has to be said as the latter.
"""

from __future__ import annotations

import math

NEARLY_ALL = 0.9
"""A loss beyond which no digit tells anything: a tenth of the speed is left."""


def signed(change: float) -> str:
    """A change with its sign; none where it rounds to zero: `-18.0%`, `+3.1%`, `0.0%`."""
    text = f"{change:+.1%}"
    return "0.0%" if text in ("-0.0%", "+0.0%") else text


def change_of(loss: float, *, higher_is_better: bool) -> float:
    """What a loss (a share) is as a change of the metric itself; infinite for a time when all of the speed is lost."""
    if higher_is_better:
        return -loss
    return math.inf if loss >= 1 else 1 / (1 - loss) - 1


def found_text(loss: float, *, higher_is_better: bool) -> str:
    """What would have been found, given the smallest loss (a share) that would."""
    if loss > NEARLY_ALL:
        least = f"loss below {NEARLY_ALL:.0%}" if higher_is_better else "rise to less than ten times"
        return f"no {least} would have been found"
    return f"{least_text(loss, higher_is_better=higher_is_better)} or more would have been found"


def least_text(loss: float, *, higher_is_better: bool) -> str:
    """A loss as a magnitude: `a loss of 5.0%`, or of a time `a rise of 5.3%`."""
    if higher_is_better:
        return f"a loss of {loss:.1%}"
    return f"a rise of {change_of(loss, higher_is_better=False):.1%}"


def accepted_text(loss: float, why: str, *, higher_is_better: bool) -> str:
    """A tolerance (a share) and where it comes from: `10.0% (why)`, of a time `+11.1% (a loss of 10.0%: why)`."""
    if higher_is_better:
        return f"{loss:.1%} ({why})"
    return f"{signed(change_of(loss, higher_is_better=False))} (a loss of {loss:.1%}: {why})"
