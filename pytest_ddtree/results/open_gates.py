"""What becomes of a gate that is not fine: whether further rounds would decide it, and what is said where it is recorded. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pytest_ddtree.results.gates import Gate
from pytest_ddtree.results.metrics import SPEEDUP
from pytest_ddtree.results.model import CellFigures
from pytest_ddtree.results.thresholds import ThresholdResult


@dataclass(frozen=True, slots=True)
class Paired:
    """A gate, and how many rounds there are on the side that it compares with: a round beyond them has no partner."""

    gate: Gate
    partners: int


def more_would_tell(
    paired: Sequence[Paired],
    thresholds: Sequence[ThresholdResult],
    figures: CellFigures,
    baseline: CellFigures | None,
) -> bool:
    """Whether something is undecided that further rounds can decide: a speedup needs those of the baseline too."""
    behind = baseline is None or len(baseline.rounds) < len(figures.rounds)
    return bool(_undecided(paired, thresholds, len(figures.rounds)) - ({SPEEDUP.name} if behind else set()))


def baseline_would_tell(
    paired: Sequence[Paired],
    thresholds: Sequence[ThresholdResult],
    figures: CellFigures,
    baseline: CellFigures | None,
) -> bool:
    """Whether a speedup is undecided that the rounds can decide which the baseline lacks: it is precise in fewer than a config."""
    if baseline is None or len(baseline.rounds) >= len(figures.rounds):
        return False
    return SPEEDUP.name in _undecided(paired, thresholds, len(baseline.rounds))


def _undecided(paired: Sequence[Paired], thresholds: Sequence[ThresholdResult], rounds: int) -> set[str]:
    """Metrics that something beyond these rounds can be said of."""
    open_ones = {
        one.gate.metric for one in paired if one.gate.outcome == "undecided" and rounds < one.partners
    }
    return open_ones | {one.metric for one in thresholds if one.outcome == "undecided"}


def drift_line(gate: Gate) -> str | None:
    """What is said of a sample that is recorded, given how it stands against the best before it; None where it is fine."""
    if gate.outcome == "regressed":
        return (
            "recorded, though worse than the best before it, so that a later session that shows the same as clearly fails: "
            f"{gate}; --ddtree-accept-drift 'WHY' accepts the drift"
        )
    return f"recorded, though it may be a drift: {gate}" if gate.outcome == "undecided" else None
