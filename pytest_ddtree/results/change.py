"""One change between two sides, and what may be said of it; all changes of a comparison. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Literal

from pytest_ddtree.grid import CellKey
from pytest_ddtree.results.gates import Gate, decide
from pytest_ddtree.results.looping import Looping
from pytest_ddtree.results.metrics import Metric
from pytest_ddtree.results.model import finite
from pytest_ddtree.results.paired import Loss, log_share
from pytest_ddtree.results.start_times import StartTimes
from pytest_ddtree.results.tolerance import Tolerance

Outcome = Literal["worse", "better", "fine", "undecided", "no change seen"]

BY_STAY = 0.005
"""How often the stays alone may show by chance what they must show too: a few that agree by luck look like a quiet machine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One metric of one cell on both sides."""

    config: str
    key: CellKey | None
    """None: all cells together."""
    metric: Metric
    before: float
    now: float
    loss: Loss
    tolerance: Tolerance
    alpha: float
    judged: bool = False
    """All cells together, or a headline: that nothing was seen of it is not enough, a loss must be excluded."""
    stays: Loss | None = None
    """The same with each stay of a build as a single observation, where there are enough stays for it to say something."""

    @property
    def outcome(self) -> Outcome:
        """`worse` or `better` when the interval lies wholly beyond the tolerance on that side, whatever stays did by luck.

        Else `fine` or `undecided`, by the rule of the gates, for what is judged, and `no change seen` for all others.
        """
        found = decide(self.loss, self.tolerance.share, self.alpha)
        limit = log_share(self.tolerance.share)
        if found == "regressed":
            if self.stays is None or self.stays.at_least(BY_STAY) > limit:
                return "worse"
            found = "undecided"
        gained = not math.isinf(self.loss.error) and self.loss.at_most(self.alpha) < -limit
        if gained and (self.stays is None or self.stays.at_most(BY_STAY) < -limit):
            return "better"
        return found if self.judged else "no change seen"

    @property
    def visible(self) -> float:
        """The smallest loss that would have been found with 95 % power, as a share."""
        loss, alpha = self._weaker
        return loss.visible(self.tolerance.share, alpha)

    @property
    def shown(self) -> Loss:
        """The loss that every report shows: by rounds or by stays, whichever says less."""
        return self._weaker[0]

    @property
    def ratio(self) -> tuple[float, float, float]:
        """now / before with its 95 % interval (NaN bounds for one round)."""
        sign = -1.0 if self.metric.higher_is_better else 1.0
        loss = self.shown
        value = math.exp(sign * loss.mean)
        if math.isinf(loss.error):
            return value, math.nan, math.nan
        ends = sorted(math.exp(sign * bound) for bound in (loss.at_least(0.025), loss.at_most(0.025)))
        return value, ends[0], ends[1]

    @property
    def where(self) -> str:
        """Config and cell, for tables."""
        return f"{self.config} {self.key.id}" if self.key is not None else "all cells together"

    def gate(self, against: str, *, what: str | None = None) -> Gate:
        """The same as the gates of a single session say it; `against` names the other side."""
        outcome = self.outcome
        loss, alpha = self._weaker
        return Gate(
            outcome="regressed" if outcome == "worse" else "undecided" if outcome == "undecided" else "fine",
            what=self.where if what is None else what,
            metric=self.metric.name,
            unit="relative" if self.key is None else self.metric.unit,
            higher_is_better=self.metric.higher_is_better,
            before=self.before,
            now=self.now,
            loss=loss,
            tolerance=self.tolerance,
            alpha=alpha,
            against=against,
            digits=3 if self.key is None else self.metric.digits,
        )

    @property
    def _weaker(self) -> tuple[Loss, float]:
        """Which of the two, rounds or stays, would have found only the larger loss, and its level."""
        found = [(self.loss, self.alpha), *([] if self.stays is None else [(self.stays, BY_STAY)])]
        return max(found, key=lambda one: one[0].visible(self.tolerance.share, one[1]))

    def as_json(self) -> dict[str, Any]:
        """Plain values."""
        value, low, high = self.ratio
        return {
            "config": self.config,
            "cell": None if self.key is None else self.key.id,
            "metric": self.metric.name,
            "before": self.before,
            "now": self.now,
            "ratio": value,
            "low": finite(low),
            "high": finite(high),
            "n": self.shown.n,
            "outcome": self.outcome,
            "judged": self.judged,
            "tolerance": self.tolerance.share,
            "tolerance_why": self.tolerance.why,
            "smallest_visible": self.visible,
        }


@dataclass(frozen=True, slots=True)
class Comparison:
    """All changes, the pooled one first where there is one."""

    before: str
    now: str
    changes: tuple[Change, ...]
    only_before: tuple[str, ...] = ()
    only_now: tuple[str, ...] = ()
    """Cells that cannot be compared: the other side does not have them, or (said in brackets) one is corrupt or has other prompts."""
    unrest: float | None = None
    """The machine was not quiet: so far apart are the blocks, as a share. None: they agree, or there are none."""
    confirmed: bool = True
    """Whether a change that is seen here may be called one: stays that agree by luck look like a change until further ones are made."""
    at_once: bool = False
    """Whether both sides were up at the same time and took turns round by round."""
    looping: Looping = field(default_factory=Looping)
    starts: StartTimes = field(default_factory=StartTimes)

    @property
    def beyond_noise(self) -> tuple[Change, ...]:
        """What changed, worse first."""
        found = [change for change in self.changes if change.outcome in ("worse", "better")]
        return tuple(sorted(found, key=lambda change: change.outcome != "worse"))

    @property
    def worse(self) -> tuple[Change, ...]:
        """What got worse, confirmed or not."""
        return tuple(change for change in self.beyond_noise if change.outcome == "worse")

    @property
    def undecided(self) -> tuple[Change, ...]:
        """What was judged and may have lost more than is accepted: more rounds would tell."""
        return tuple(change for change in self.changes if change.outcome == "undecided")

    @property
    def apart(self) -> tuple[Change, ...]:
        """Changes whose own 95 % interval leaves out 1 though none is called a change: of many, one in twenty by chance alone."""
        return tuple(
            change
            for change in self.changes
            if change.outcome not in ("worse", "better")
            and not change.ratio[1] <= 1.0 <= change.ratio[2]
            and not math.isnan(change.ratio[1])
        )

    @property
    def notes(self) -> tuple[str, ...]:
        """What else a reader must know of the two: whose answers loop, whose starts take longer."""
        found = (part.line(self.before, self.now) for part in (self.looping, self.starts))
        return tuple(line for line in found if line is not None)

    @property
    def unchanged(self) -> bool:
        """Whether a loss is excluded wherever one was looked for, and nothing changed elsewhere either."""
        judged = [change for change in self.changes if change.judged]
        return bool(judged) and all(change.outcome == "fine" for change in judged) and not self.beyond_noise
