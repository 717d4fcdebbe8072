"""What a selection of tests will need: which configs, which cells, and so what the baseline has to provide before it goes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pytest_ddtree.grid import CellKey, Config

if TYPE_CHECKING:
    from pytest_ddtree.coding.problems import Problem


@dataclass(frozen=True, slots=True)
class Place:
    """Which of several workers a session is: the run's name, the number of its group from 0, and its folder in the run's."""

    run: str
    group: int
    folder: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Derived from the selected tests alone; nothing is ever added to the selection."""

    configs: frozenset[Config] = field(default_factory=frozenset)
    """Configs that some selected test runs on."""
    exactness: frozenset[Config] = field(default_factory=frozenset)
    """Configs of which a test is selected that fails when they are corrupt: their speed tests are then skipped, not failed."""
    cells: frozenset[CellKey] = field(default_factory=frozenset)
    """Cells that some selected test measures."""
    full: frozenset[Config] = field(default_factory=frozenset)
    """Configs whose verdict of level full some selected test wants."""
    windows: frozenset[Config] = field(default_factory=frozenset)
    """Configs whose window some selected test probes."""
    sampled: frozenset[Config] = field(default_factory=frozenset)
    """Configs whose sampled answers some selected test judges; they are drawn while their servers are up."""
    clauses: bool = False
    """Whether some selected test carries out a clause of the contract."""
    problems: tuple[Problem, ...] = ()
    """Coding problems that some selected test solves, in the order of the tests."""
    own_problems: tuple[Problem, ...] = ()
    """Problems that a user's tests have among their parameters and solve: part of no comparison."""

    @property
    def judges(self) -> bool:
        """Whether tokens are judged apart from the coding eval, which can do with texts."""
        return bool(self.exactness or self.cells or self.clauses or self.sampled)

    @property
    def needs_baseline(self) -> bool:
        """Whether answers of the non-speculative server are needed: to verify a config, to print a speedup, to compare answers."""
        return (self.judges or self.solves) and any(config.speculative for config in self.configs)

    @property
    def solves(self) -> bool:
        """Whether some selected test solves a coding problem that is known before it runs."""
        return bool(self.problems or self.own_problems)
