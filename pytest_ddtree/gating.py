"""Gates of one session: figures against the expected ones and against absolute thresholds."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_ddtree.grid import BASELINE, CellKey, Config
from pytest_ddtree.options import Settings
from pytest_ddtree.results.expected import recorded_lines
from pytest_ddtree.results.expected_files import ExpectedBroken, add_expected
from pytest_ddtree.results.gate_setup import GateOptions, make_gatekeeper
from pytest_ddtree.results.gatekeeper import CellOutcome, Gatekeeper, GatePolicy
from pytest_ddtree.results.model import CellFigures

if TYPE_CHECKING:
    from pytest_ddtree.run import Run


def gate_options(settings: Settings) -> GateOptions:
    """What the user declared about gates."""
    return GateOptions(
        expected=settings.expected,
        update_expected=settings.update_expected,
        update_new=settings.update_new,
        accept_drift=settings.accept_drift,
        headline=settings.headline,
        gates=settings.gates,
        alpha=settings.alpha,
        strict=settings.strict,
    )


class Gating:
    """Judges every measured cell; inside the tests, so that -x, --lf and JUnit see a regression."""

    def __init__(self, run: Run, policy: GatePolicy | None) -> None:
        self._run = run
        self._options = gate_options(run.settings)
        self._policy = policy
        self._keeper: Gatekeeper | None = None

    @property
    def keeper(self) -> Gatekeeper | None:
        """The gatekeeper, made on first use; None where nothing is gated. Raises ExpectedBroken."""
        if self._keeper is None and self._options.active and self._policy is not None:
            self._keeper, warnings = make_gatekeeper(
                self._options,
                self._policy,
                self._run.fingerprint,
                self._run.settings.results,
                own=self._run.run_dir,
            )
            self._run.results.warnings += warnings
        return self._keeper

    def gate(self, config: Config, figures: CellFigures) -> CellOutcome:
        """The outcome of one cell; an undecided headline is measured on, up to the cap."""
        keeper, run = self.keeper, self._run
        if keeper is None:
            return CellOutcome()
        baseline = run.results.cells.get((BASELINE.id, figures.key))
        return self._note(
            keeper.check(figures, baseline, lambda rounds: self._more(config, figures.key, rounds))
        )

    def _more(self, config: Config, key: CellKey, rounds: int) -> tuple[CellFigures, CellFigures | None]:
        """A cell with at least so many rounds, and the baseline's, which gets as many where its server is up."""
        run = self._run
        figures = run.speed.measure(config, key, at_least=rounds)
        if config.speculative and (BASELINE.id, key) in run.results.cells and run.is_up(BASELINE):
            run.speed.measure(BASELINE, key, at_least=rounds)
        return figures, run.results.cells.get((BASELINE.id, key))

    def together(self) -> CellOutcome:
        """The pooled outcome of all cells: a small loss everywhere that no single cell shows."""
        keeper = self.keeper
        return CellOutcome() if keeper is None else self._note(keeper.together())

    def close(self, cells: tuple[CellKey, ...]) -> None:
        """Write what was recorded, and say which expected figures belong to nothing any more."""
        keeper, run = self._keeper, self._run
        if keeper is None or keeper.expected is None:
            return
        recording = keeper.record(run.results)
        for text in recording.withdrawn:
            run.warn(text)
        if recording.samples:
            try:
                add_expected(keeper.expected.path, recording.samples)
            except (OSError, ExpectedBroken) as error:
                why = getattr(error, "strerror", None) or error
                run.file.unwritten.append(
                    f"{self._options.expected}: the expected figures are not updated: {why}"
                )
                run.results.warnings.append(run.file.unwritten[-1])
            else:
                run.results.recorded = recorded_lines(keeper.expected, recording.samples)
                for text in recording.drifts:
                    run.warn(text)
        run.results.warnings += keeper.orphans([BASELINE.id, *(config.id for config in run.configs)], cells)

    def _note(self, outcome: CellOutcome) -> CellOutcome:
        run = self._run
        for gate in outcome.gates:
            run.results.gates.append(gate.as_json())
            run.store("gate", gate=gate.as_json())
        said = {str(gate) for gate in outcome.gates}
        for text in outcome.warnings:
            if text in said:
                continue
            run.results.warnings.append(text)
            run.store("warning", text=text)
        return outcome
