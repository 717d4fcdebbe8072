"""Problems of a user's own tests: part of no comparison, and asked so that the servers change places as seldom as can be."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from pytest_ddtree.coding.pairs import Pair
from pytest_ddtree.coding.problems import Problem
from pytest_ddtree.coding.sampled import SampledPair
from pytest_ddtree.errors import Infrastructure
from pytest_ddtree.grid import BASELINE, Config
from pytest_ddtree.solving import Solver

if TYPE_CHECKING:
    from pytest_ddtree.run import Run

CHANGES_UNREMARKED = 1
"""A test that gives all its problems at once makes the baseline come back once."""


class OwnProblems:
    """Asks for problems that no selected test of the suite is for.

    Those that tests have among their parameters are in the plan: the baseline answers all of them before a config takes its place,
    and a config all of them at once. Of others nobody knows before the test asks.
    """

    def __init__(
        self,
        run: Run,
        solver: Callable[[], Solver],
        *,
        by_tokens: Callable[[], bool],
        withdraw: Callable[[Config, Iterable[Pair]], None],
    ) -> None:
        """`by_tokens` says whether answers are judged by their tokens, `withdraw` takes pairs that may be corrupt."""
        self._run = run
        self._solver = solver
        self._by_tokens = by_tokens
        self._withdraw = withdraw
        self._known: dict[Config, dict[str, Pair | SampledPair]] = {}
        self._failed: dict[Config, Infrastructure] = {}
        self._changes = 0

    def record_baseline(self) -> None:
        """Ask the baseline for what is planned; what goes wrong is an error of the tests that have these problems."""
        try:
            self._solver().solve(BASELINE, self._run.plan.own_problems)
        except Infrastructure as error:
            self._failed[BASELINE] = error

    def pairs(self, config: Config, problems: Sequence[Problem]) -> Mapping[str, Pair | SampledPair]:
        """All pairs that are known of a config, those of these problems among them: task id -> pair. Raises Infrastructure."""
        planned = {problem.task_id for problem in self._run.plan.own_problems}
        if any(problem.task_id in planned for problem in problems):
            self._ask_planned(config)
        others = {problem.task_id: problem for problem in problems if problem.task_id not in planned}
        self._ask(config, tuple(others.values()))
        return self._known[config]

    def _ask_planned(self, config: Config) -> None:
        failed = self._failed.get(BASELINE) or self._failed.get(config)
        if failed is None:
            try:
                self._ask(config, self._run.plan.own_problems)
            except Infrastructure as error:
                self._failed[config] = failed = error
        if failed is not None:
            raise failed

    def _ask(self, config: Config, problems: Sequence[Problem]) -> None:
        known = self._known.setdefault(config, {})
        solver = self._solver()
        missing = [one for one in problems if one.task_id not in known and one.task_id not in solver.faults]
        if not missing:
            return
        self._ask_baseline(config, missing)
        if self._run.settings.coding_temperature > 0:
            known |= solver.sampled_pairs(config, missing)
            return
        pairs = solver.pairs(config, missing, first=False)
        self._withdraw(config, pairs.values())
        known |= pairs

    def _ask_baseline(self, config: Config, problems: Sequence[Problem]) -> None:
        """Everything that is needed of the baseline while it is up, and a word where it comes back again and again."""
        run = self._run
        was_up = run.is_up(config)
        self._solver().solve(BASELINE, problems)
        if self._by_tokens():
            _ = run.verifier.baseline
        if not was_up or run.is_up(config):
            return
        self._changes += 1
        if self._changes == CHANGES_UNREMARKED + 1:
            run.warn(
                f"ddtree_solve: the baseline took the place of {config.id} for the second time, to answer a problem that was not known "
                "before; each time costs two starts. Give the problems of a test all at once, ddtree_solve([...]), or parametrize the "
                "test with them: then the baseline answers them before a config starts"
            )
