"""What a session needs of the baseline, in an order in which each start of it serves as much as it can."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from pytest_ddtree.errors import Infrastructure
from pytest_ddtree.grid import BASELINE, Config
from pytest_ddtree.speed import Infeasible
from pytest_ddtree.workload.cell import CellNotMeasured

if TYPE_CHECKING:
    from pytest_ddtree.run import Run


class NeededOfBaseline:
    """Asks the baseline for everything that the plan needs of it, once, before a speculative server takes its place."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._answered = False
        self._measured = False

    def before(self, config: Config) -> None:
        """Before the server of a config is used.

        Raises:
            Infrastructure: of a speculative config, that something of the baseline could not be had.
        """
        if config.speculative:
            self._beside(config)
            self._all()
            return
        # What goes wrong here is said where it is needed; the baseline's own tests may well do without.
        with suppress(Infrastructure):
            if self._run.settings.baseline_gpus is not None:
                self._all()
            self._matched()

    def _all(self) -> None:
        if self._run.settings.baseline_gpus is not None:
            # The baseline that judges is to stay up: what wants its best flags comes first.
            self._measure()
            self._matched()
            self._run.get(BASELINE)
        else:
            self._matched()
            self._measure()

    def _beside(self, config: Config) -> None:
        """Start a config's server while the baseline answers, where both fit and nothing is timed: what fails here is said later."""
        run = self._run
        if (
            run.settings.server != "reference"
            or self._answered
            or not run.plan.judges
            or run.servers.pool.settings.servers_at_once < 2
            or config.window is not None
        ):
            return
        try:
            run.pilot.admit(config)
            if not run.verifier.begin_baseline():
                return
            run.get(config)
        except Infrastructure:
            return
        if config in run.plan.exactness:
            run.verifier.ask_ahead(config)

    def _matched(self) -> None:
        """What is asked of the baseline with the speculative servers' flags, before its best flags cost that server its place."""
        run = self._run
        if run.plan.judges or not run.coding.by_text:
            _ = run.verifier.baseline
        if self._answered:
            return
        self._answered = True
        if run.plan.sampled and run.settings.records is None:
            run.get(BASELINE)
            run.sampled.prepare(BASELINE)
        if run.plan.problems:
            run.coding.record_baseline(run.plan.problems)
        if run.plan.own_problems:
            run.coding.own.record_baseline()

    def _measure(self) -> None:
        if self._measured:
            return
        self._measured = True
        for key in sorted(self._run.plan.cells):
            try:
                self._run.speed.measure(BASELINE, key)
            except (Infeasible, CellNotMeasured) as reason:
                # The baseline's own test says it again, as an error; here it costs the speedup of this cell and nothing else.
                self._run.progress(f"baseline: not measured: {reason}")
