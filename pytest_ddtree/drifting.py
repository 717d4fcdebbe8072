"""Drift of the machine: the baseline's cells once more at the end of a sweep, against what they were at the beginning."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_ddtree.grid import BASELINE
from pytest_ddtree.results.model import Round
from pytest_ddtree.results.order import Drift, drift_cells, drifts

if TYPE_CHECKING:
    from pytest_ddtree.run import Run

CELLS = 3
"""Cells that are measured again, where the time budget has room for them."""
OVERHEAD = 1.5
"""How much longer a cell takes than its measured load: warm-up, flushes."""
BEYOND = 0.03
"""A drift that matters: as large as the loss that a gate accepts."""


@dataclass(frozen=True, slots=True)
class DriftOutcome:
    """The drift of each cell that was measured again, and those whose whole interval is beyond what matters, as texts."""

    found: tuple[Drift, ...]
    beyond: tuple[str, ...]


def measure_drift(run: Run) -> DriftOutcome:
    """Measure baseline cells again, as many as the time budget allows, and say how they differ from the beginning.

    Raises:
        Infrastructure: the baseline did not come up again, or could not be measured.
    """
    cells = {key: figures for (config, key), figures in run.results.cells.items() if config == BASELINE.id}
    first = [one for figures in cells.values() for one in figures.rounds]
    again = _stored(run)
    if cells and not again:
        seconds = OVERHEAD * sum(one.wall_s for one in first) / len(cells)
        for key in drift_cells(list(cells), seconds, run.budget.left_s, most=CELLS):
            again += run.speed.again(BASELINE, key)
    found = drifts([*first, *again])
    run.results.drift = [str(one) for one in found]
    beyond = tuple(str(one) for one in found if one.beyond(BEYOND))
    for text in beyond:
        warning = f"{text}: figures from the beginning and the end of this session do not compare to better than that"
        run.results.warnings.append(warning)
        run.store("warning", text=warning)
    return DriftOutcome(found, beyond)


def _stored(run: Run) -> list[Round]:
    """What an interrupted run measured again."""
    return [] if run.resumed is None else [one for one in run.resumed.stored.rounds if one.again]
