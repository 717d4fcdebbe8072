"""What the cells of a selection cost: rounds and requests, those included that nobody selects but the gates and the speedups need. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_ddtree.estimate import Count
from pytest_ddtree.grid import BASELINE, CellKey, Config

if TYPE_CHECKING:
    from pytest_ddtree.results.gatekeeper import GatePolicy

Cell = tuple[Config, CellKey]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rounds:
    """How many rounds of a cell are wanted, those included that a resumed run has."""

    least: int
    most: int


@dataclass(frozen=True, slots=True)
class CellCost:
    """Rounds that are left to measure of one cell, least and most. The warm-up comes with the first."""

    key: CellKey
    least: int
    most: int

    def requests(self, turnovers: int) -> tuple[int, int]:
        """Requests, the warm-up's included, if anything is measured: one a stream, and `turnovers` a stream and round."""
        least, most = (
            self.key.concurrency * (1 + turnovers * n) if n else 0 for n in (self.least, self.most)
        )
        return least, most

    def serial(self, turnovers: int) -> int:
        """The most requests of one stream, which are sent one after the other."""
        return 1 + turnovers * self.most


def cell_costs(
    selected: Sequence[Cell],
    *,
    compared: Collection[CellKey],
    again: Sequence[CellKey],
    wanted: Rounds,
    policy: GatePolicy | None,
    expected: bool,
    measured: Callable[[Config, CellKey], int],
) -> tuple[CellCost, ...]:
    """The cost of every cell that is measured.

    `selected` cells have a test. Of `compared` cells the baseline is measured too, for the speedups of others. `again` are cells that are
    measured once more to see drift. `wanted` is what the options say of a cell; gates of `policy` may ask for more, and where they do, of
    the baseline's cell as well. `expected`: there are expected figures. `measured` says how many rounds of a cell there are already.
    """
    cells = dict.fromkeys([*((BASELINE, key) for key in sorted(compared)), *selected])
    asked = {
        cell: (0, 0) if policy is None else policy.rounds_asked(cell[0].id, cell[1], expected=expected)
        for cell in cells
    }
    found = []
    for config, key in cells:
        least, most = asked[config, key]
        if config == BASELINE:
            # What decides a speedup is measured of both sides.
            most = max(most, *(more for (_, of), (_, more) in asked.items() if of == key))
        done = measured(config, key)
        found.append(
            CellCost(key, max(0, max(wanted.least, least) - done), max(0, max(wanted.most, most) - done))
        )
    return (*found, *(CellCost(key, wanted.least, wanted.least) for key in again))


def counts(costs: Sequence[CellCost], turnovers: int) -> tuple[Count, Count]:
    """Rounds and requests of all cells."""
    requests = [one.requests(turnovers) for one in costs]
    return (
        Count("rounds", sum(one.least for one in costs), sum(one.most for one in costs)),
        Count(
            "requests of cells, their warm-up included",
            sum(least for least, _ in requests),
            sum(most for _, most in requests),
        ),
    )
