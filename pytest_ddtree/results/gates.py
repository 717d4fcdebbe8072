"""Gates: is a cell, or everything together, slower than it was? Pure.

Only the headline cells that were declared before are judged one by one: many cells at a common error rate would have no power. All
cells together are judged once more by their mean, which sees a small loss that is everywhere. The design rate of false alarms is a
session's: half of it goes to the pooled test, half is divided among the headline tests, and each part among the looks at the data,
because rounds are added until a test is decided.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pytest_ddtree.results.metrics import Metric, Values
from pytest_ddtree.results.model import finite
from pytest_ddtree.results.paired import Loss, log_share, paired_loss, pooled_loss
from pytest_ddtree.results.scale import accepted_text, found_text, signed
from pytest_ddtree.results.tolerance import Tolerance

Outcome = Literal["regressed", "fine", "undecided"]

LOOKS = (4, 8, 16, 30)
"""Rounds at which an undecided gate is looked at again; the last one is the cap."""

FINE = 0.05
"""`fine` is no alarm and needs less evidence: with 95 % confidence the loss is within the tolerance."""

SHOWN = 0.025
"""Each end of the interval that is printed, which is a 95 % interval."""

POOLED_TOLERANCE = 0.01
"""A mean loss over all cells that is accepted within one session."""


@dataclass(frozen=True, slots=True)
class Design:
    """How the session's error rate is spent. `tests` is the number of headline tests: cells x metrics."""

    alpha: float = 0.001
    tests: int = 1
    looks: tuple[int, ...] = LOOKS

    @property
    def of_one(self) -> float:
        """Error rate of one look at one headline test."""
        return self.alpha / 2 / max(1, self.tests) / len(self.looks)

    @property
    def of_pooled(self) -> float:
        """Error rate of one look at the pooled test."""
        return self.alpha / 2 / len(self.looks)

    def next_look(self, rounds: int) -> int | None:
        """How many rounds there should be at the next look; None at the cap."""
        return next((look for look in self.looks if look > rounds), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Gate:
    """The outcome of one test, with all that its sentence needs."""

    outcome: Outcome
    what: str
    """Config and cell, or what was pooled."""
    metric: str
    unit: str
    higher_is_better: bool
    before: float
    now: float
    loss: Loss
    tolerance: Tolerance
    alpha: float
    against: str = "expected"
    """What it was compared with."""
    digits: int = 1
    unconfirmed: bool = False
    """Whether it is undecided although a loss was seen, because nothing was measured again to confirm it."""

    @property
    def visible(self) -> float:
        """The smallest loss that this test would have found with 95 % power, as a share."""
        return self.loss.visible(self.tolerance.share, self.alpha)

    def __str__(self) -> str:
        change = -self.loss.share if self.higher_is_better else math.expm1(self.loss.mean)
        if math.isinf(self.loss.error):
            spread = "one round, no interval"
        else:
            bounds = sorted(
                _change(bound, self.higher_is_better)
                for bound in (self.loss.at_least(SHOWN), self.loss.at_most(SHOWN))
            )
            spread = f"95% interval {signed(bounds[0])} to {signed(bounds[1])}"
        text = (
            f"{self.what}: {self.metric} {self.outcome}: {self.now:.{self.digits}f} {self.unit} against "
            f"{self.before:.{self.digits}f} ({self.against}), {signed(change)}, {spread}, n={self.loss.n}, "
            f"tolerance {accepted_text(self.tolerance.share, self.tolerance.why, higher_is_better=self.higher_is_better)}"
        )
        if self.unconfirmed:
            text += "; looks worse, not confirmed by further passes"
        elif self.outcome == "undecided":
            text += f"; {found_text(self.visible, higher_is_better=self.higher_is_better)}"
        return text

    def as_json(self) -> dict[str, Any]:
        """Plain values for stored results and reports."""
        return {
            "outcome": self.outcome,
            "what": self.what,
            "metric": self.metric,
            "before": self.before,
            "now": self.now,
            "against": self.against,
            "loss": self.loss.share,
            "n": self.loss.n,
            "low": finite(1 - math.exp(-self.loss.at_least(SHOWN))) if self.loss.n > 1 else None,
            "high": finite(1 - math.exp(-self.loss.at_most(SHOWN))) if self.loss.n > 1 else None,
            "tolerance": self.tolerance.share,
            "tolerance_why": self.tolerance.why,
            "smallest_visible": self.visible,
            "text": str(self),
        }


def decide(loss: Loss, tolerance: float, alpha: float) -> Outcome:
    """`regressed`: the interval lies wholly beyond the tolerance (a share); `fine`: wholly within it; else undecided."""
    limit = log_share(tolerance)
    if math.isinf(loss.error):
        return "undecided"
    if loss.at_least(alpha) > limit:
        return "regressed"
    return "fine" if loss.at_most(FINE) <= limit else "undecided"


def gate_cell(
    what: str,
    metric: Metric,
    before: Values,
    now: Values,
    tolerance: Tolerance,
    design: Design,
    *,
    against: str = "expected",
) -> Gate | None:
    """The gate of one metric of one headline cell; None when no round is on both sides."""
    loss = paired_loss(before, now, higher_is_better=metric.higher_is_better)
    if loss is None:
        return None
    shared = sorted(before.keys() & now.keys())
    return Gate(
        outcome=decide(loss, tolerance.share, design.of_one),
        what=what,
        metric=metric.name,
        unit=metric.unit,
        higher_is_better=metric.higher_is_better,
        before=_geometric([before[number] for number in shared]),
        now=_geometric([now[number] for number in shared]),
        loss=loss,
        tolerance=tolerance,
        alpha=design.of_one,
        against=against,
        digits=metric.digits,
    )


def gate_pooled(
    metric: Metric,
    cells: Sequence[tuple[Values, Values]],
    tolerance: Tolerance,
    design: Design,
    *,
    against: str = "expected",
) -> Gate | None:
    """One test of the mean loss over all cells, (before, now) each, that have two rounds on both sides; None without any."""
    losses = [
        loss
        for before, now in cells
        if (loss := paired_loss(before, now, higher_is_better=metric.higher_is_better)) is not None
    ]
    loss = pooled_loss(losses)
    if loss is None:
        return None
    return Gate(
        outcome=decide(loss, tolerance.share, design.of_pooled),
        what=f"all {sum(one.n > 1 for one in losses)} cells together",
        metric=metric.name,
        unit="relative",
        higher_is_better=metric.higher_is_better,
        before=1.0,
        now=math.exp(-loss.mean if metric.higher_is_better else loss.mean),
        loss=loss,
        tolerance=tolerance,
        alpha=design.of_pooled,
        against=against,
        digits=3,
    )


_COUNT = re.compile(r"^all \d+ cells")
_DATE = re.compile(r" \d{4}-\d{2}-\d{2}$")


def name_of(gate: Mapping[str, Any]) -> tuple[str, str, str]:
    """What tells a gate (`Gate.as_json`) from the others of a run, whenever it is judged again: not how many cells there are together, nor
    of which day the figures are that it compares with."""
    what = _COUNT.sub("all cells", str(gate["what"]))
    return what, str(gate["metric"]), _DATE.sub("", str(gate.get("against")))


def _geometric(values: Sequence[float]) -> float:
    return math.exp(math.fsum(math.log(value) for value in values) / len(values))


def _change(loss: float, higher_is_better: bool) -> float:
    return math.expm1(-loss) if higher_is_better else math.expm1(loss)
