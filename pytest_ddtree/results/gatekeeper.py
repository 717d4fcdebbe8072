"""Gating a session: which cells are judged, against what, with which tolerance; asked by the tests, so that a regression is a failure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from pytest_ddtree.grid import CellKey
from pytest_ddtree.results.entries import key_of, setting_of, started
from pytest_ddtree.results.expected import DRIFT, Expected, Key, Sample, accept_drift, missing_text
from pytest_ddtree.results.fingerprint import Fingerprint
from pytest_ddtree.results.gates import POOLED_TOLERANCE, Design, Gate, gate_cell, gate_pooled
from pytest_ddtree.results.metrics import METRICS, TOK_S, Metric, Values, applies, round_values
from pytest_ddtree.results.model import CellFigures, Results
from pytest_ddtree.results.open_gates import Paired, baseline_would_tell, drift_line, more_would_tell
from pytest_ddtree.results.thresholds import Threshold, ThresholdResult, judge_threshold
from pytest_ddtree.results.tolerance import (
    Start,
    StartSpread,
    Tolerance,
    across_sessions,
    of_all,
    start_spread,
)

ORPHANS_SHOWN = 5

RECORDED = 16
"""Rounds of a headline cell that are recorded: a later session pairs its rounds with these, and with four of them no loss is proven."""

Update = str
"""`no`, `new` (record what is missing) or `all`."""

Measure = Callable[[int], tuple[CellFigures, CellFigures | None]]
"""Measures a cell on until it has that many rounds; the baseline's too where its server is up. Returns both."""


@dataclass(frozen=True, slots=True)
class GatePolicy:
    """What was declared before anything was measured."""

    headline: tuple[tuple[str, CellKey], ...]
    thresholds: tuple[Threshold, ...] = ()
    design: Design = field(default_factory=Design)
    update: Update = "no"
    accept_drift: str | None = None
    """Why a drift is accepted; becomes the origin of the new samples."""
    strict: bool = False
    arguments: tuple[str, ...] = ()
    """Of pytest, for the command that a failure prints."""

    def rounds_asked(self, config: str, key: CellKey, *, expected: bool) -> tuple[int, int]:
        """How many rounds of a cell the gates ask for, least and most; 0 where none does. `expected`: there are expected figures."""
        headline = expected and (config, key) in self.headline
        least = RECORDED if headline and self.update == "all" else 0
        if any(one.takes(config, key) for one in self.thresholds) or (headline and self.update != "all"):
            return least, self.design.looks[-1]
        return least, least


@dataclass(frozen=True, slots=True)
class CellOutcome:
    """What the gates say of one cell. `failures` fail the test, `errors` make it an error, `warnings` are shown."""

    failures: tuple[str, ...] = ()
    errors: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    gates: tuple[Gate | ThresholdResult, ...] = ()


@dataclass(frozen=True, slots=True)
class Recording:
    """What became expected at the end of a session."""

    samples: Mapping[Key, Sample]
    withdrawn: tuple[str, ...] = ()
    """Lines about what did not."""
    drifts: tuple[str, ...] = ()
    """Lines about what a later session may call a drift."""


class Gatekeeper:
    """Judges each cell when it is measured, and all of them together at the end."""

    def __init__(
        self,
        policy: GatePolicy,
        fingerprint: Fingerprint,
        expected: Expected | None,
        *,
        local_starts: Mapping[tuple[Key, str], Sequence[Start]] | None = None,
        run: str | None = None,
    ) -> None:
        """`expected` None: only thresholds are judged. `local_starts` are those of earlier runs on this machine, by (key, metric), which
        tell how much a restart moves a figure. `run` is the name of the run that is judged."""
        self.policy = policy
        self.expected = expected
        self.fingerprint = fingerprint
        self.setting = setting_of(fingerprint)
        self.build = started(fingerprint)
        self.run = run
        self.date = str(fingerprint.get("date") or "")[:10]
        self.gates: list[Gate] = []
        self._due: dict[tuple[str, CellKey], CellFigures] = {}
        """What becomes expected, with the figures that were judged."""
        self._local = local_starts or {}
        self._seen: dict[tuple[str, CellKey], dict[str, tuple[Values, Values]]] = {}
        self._spreads: dict[str, list[StartSpread]] = {}

    def check(
        self, figures: CellFigures, baseline: CellFigures | None, measure_more: Measure | None = None
    ) -> CellOutcome:
        """The outcome of one cell; an undecided headline is measured on, look by look, up to the cap."""
        failures: list[str] = []
        errors: list[str] = []
        warnings: list[str] = []
        if (
            measure_more is not None
            and self._records(figures)
            and self.is_headline(figures.config, figures.key)
        ):
            figures, baseline = measure_more(max(RECORDED, len(figures.rounds)))
        paired = self._against_expected(figures, baseline)
        thresholds = self._thresholds(figures, baseline)
        if measure_more is not None and baseline_would_tell(paired, thresholds, figures, baseline):
            figures, baseline = measure_more(len(figures.rounds))
            paired = self._against_expected(figures, baseline)
            thresholds = self._thresholds(figures, baseline)
        while measure_more is not None and more_would_tell(paired, thresholds, figures, baseline):
            look = self.policy.design.next_look(len(figures.rounds))
            if look is None:
                break
            more, baseline = measure_more(look)
            if len(more.rounds) <= len(figures.rounds):
                # No time is left: what could not be decided stays undecided.
                break
            figures = more
            paired = self._against_expected(figures, baseline)
            thresholds = self._thresholds(figures, baseline)
        gates = [one.gate for one in paired]
        for gate in gates:
            self._sort(gate.outcome, str(gate), failures, warnings)
        if self.expected is not None:
            if self._records(figures):
                # Rounds are added to a cell for the gates of others: what is recorded is known at the end.
                self._due[figures.config, figures.key] = figures
            elif self.expected.last(self._key(figures)) is None and not self._is_due(figures):
                failures.append(missing_text(self.expected, self._key(figures), self.policy.arguments))
            errors.extend(self._not_measured(figures, baseline))
        for result in thresholds:
            if result.outcome == "missing":
                errors.append(result.text)
            else:
                self._sort(result.outcome, result.text, failures, warnings)
        self.gates.extend(gates)
        judged = (one for one in thresholds if one.outcome != "missing")
        return CellOutcome(tuple(failures), tuple(errors), tuple(warnings), (*gates, *judged))

    def together(self) -> CellOutcome:
        """The pooled test over all cells that were compared: a small loss everywhere that no single cell shows."""
        failures: list[str] = []
        warnings: list[str] = []
        cells = [metrics[TOK_S.name] for metrics in self._seen.values() if TOK_S.name in metrics]
        spread = of_all(self._spreads.get(TOK_S.name, []))
        gate = gate_pooled(
            TOK_S, cells, across_sessions(POOLED_TOLERANCE, spread), self.policy.design, against="expected"
        )
        if gate is None:
            return CellOutcome()
        self.gates.append(gate)
        self._sort(gate.outcome, str(gate), failures, warnings)
        return CellOutcome(tuple(failures), (), tuple(warnings), (gate,))

    def orphans(self, configs: Sequence[str], cells: Sequence[CellKey]) -> list[str]:
        """Lines about entries of tests that no longer exist."""
        if self.expected is None:
            return []
        there = [(config, cell.id) for config in configs for cell in cells]
        gone = [f"{key.config} {key.cell}" for key in self.expected.orphans(self.setting, there)]
        if not gone:
            return []
        listed = ", ".join(gone[:ORPHANS_SHOWN])
        more = f" and {len(gone) - ORPHANS_SHOWN} more" if len(gone) > ORPHANS_SHOWN else ""
        text = (
            f"{self.expected.path}: {len(gone)} entries belong to no cell of this session's grid ({listed}{more}); "
            "remove those whose tests no longer exist"
        )
        return [text]

    def record(self, results: Results) -> Recording:
        """Put what is to be recorded, with the figures that the session ends with, at the end of each history. To be called once.

        The speed of a config that was found corrupt after it was measured is no result, and nothing to expect.
        """
        samples: dict[Key, Sample] = {}
        bad: dict[str, str] = {}
        drifts: list[str] = []
        for (config, cell), judged in self._due.items():
            verdict = results.verdict(config)
            if verdict is not None and not verdict.passed:
                bad[config] = verdict.kind
                continue
            figures = results.cells.get((config, cell), judged)
            key = self._key(figures)
            samples[key] = self._sample(figures, results.base(config, cell))
            drifts += self._add(
                key, samples[key], f"{config} {cell.id}", headline=self.is_headline(config, cell)
            )
        withdrawn = (
            f"{config}: not recorded as expected, because it is {kind}" for config, kind in bad.items()
        )
        return Recording(samples, tuple(withdrawn), tuple(drifts))

    def is_headline(self, config: str, key: CellKey) -> bool:
        """Whether a cell is judged by itself."""
        return (config, key) in self.policy.headline

    def _key(self, figures: CellFigures) -> Key:
        return key_of(self.fingerprint, figures)

    def _sort(self, outcome: str, text: str, failures: list[str], warnings: list[str]) -> None:
        if outcome == "regressed" or (outcome == "undecided" and self.policy.strict):
            failures.append(text)
        elif outcome == "undecided":
            warnings.append(text)

    def _against_expected(self, figures: CellFigures, baseline: CellFigures | None) -> list[Paired]:
        if self.expected is None or self.policy.update == "all":
            return []
        key = self._key(figures)
        last = self.expected.last(key)
        if last is None:
            return []
        found: list[Paired] = []
        where = f"{figures.config} {figures.key.id}"
        for metric in METRICS.values():
            now = round_values(metric, figures, baseline)
            before = last.values.get(metric.name, {})
            if not now or not before:
                continue
            self._seen.setdefault((figures.config, figures.key), {})[metric.name] = (dict(before), now)
            tolerance = self._tolerance(key, metric)
            if not self.is_headline(figures.config, figures.key):
                continue
            against = f"expected {last.date}"
            found += self._pair(where, metric, before, now, tolerance, against)
            found += self._drift(key, metric, where, now, tolerance)
        return found

    def _pair(
        self, where: str, metric: Metric, before: Values, now: Values, tolerance: Tolerance, against: str
    ) -> list[Paired]:
        """The gate of one metric against one sample; none where no round is on both sides."""
        gate = gate_cell(where, metric, before, now, tolerance, self.policy.design, against=against)
        return [] if gate is None else [Paired(gate, 1 + max(before))]

    def _not_measured(self, figures: CellFigures, baseline: CellFigures | None) -> list[str]:
        """Metrics of a headline cell that are expected and were not measured: an error, never a pass."""
        last = None if self.expected is None else self.expected.last(self._key(figures))
        if last is None or self.policy.update == "all" or not self.is_headline(figures.config, figures.key):
            return []
        return [
            f"{figures.config} {figures.key.id}: {name} is expected ({last.date}) and was not measured, so it cannot be judged"
            for name, metric in METRICS.items()
            if last.values.get(name) and not round_values(metric, figures, baseline)
        ]

    def _drift(self, key: Key, metric: Metric, where: str, now: Values, tolerance: Tolerance) -> list[Paired]:
        """The gate against the best of the last samples; none where there is no such sample."""
        assert self.expected is not None
        best = self.expected.best(key, metric.name)
        if best is None:
            return []
        return self._pair(where, metric, best.values[metric.name], now, tolerance, f"{DRIFT}, {best.date}")

    def _tolerance(self, key: Key, metric: Metric) -> Tolerance:
        assert self.expected is not None
        known = [*self._local.get((key, metric.name), ()), *self.expected.starts(key, metric.name)]
        # What is judged must not widen the tolerance that it is judged by.
        spread = start_spread(one for one in known if one.run is None or one.run != self.run)
        self._spreads.setdefault(metric.name, []).append(spread)
        return across_sessions(metric.tolerance, spread)

    def _records(self, figures: CellFigures) -> bool:
        """Whether the figures of a cell become expected ones."""
        if self.expected is None or self._is_due(figures):
            return False
        update = self.policy.update
        return update == "all" or (update == "new" and self.expected.last(self._key(figures)) is None)

    def _is_due(self, figures: CellFigures) -> bool:
        return (figures.config, figures.key) in self._due

    def _add(self, key: Key, sample: Sample, where: str, *, headline: bool) -> list[str]:
        """Make a sample the expected one; lines about what a session as slow as this one may call a drift."""
        assert self.expected is not None
        tolerances = {name: self._tolerance(key, METRICS[name]) for name in sample.values}
        self.expected.add(key, sample)
        if not headline:
            return []
        drifts = [
            one.gate
            for name, values in sample.values.items()
            for one in self._drift(key, METRICS[name], where, values, tolerances[name])
        ]
        return [line for gate in drifts if (line := drift_line(gate)) is not None]

    def _sample(self, figures: CellFigures, baseline: CellFigures | None) -> Sample:
        values = {
            metric.name: values
            for metric in METRICS.values()
            if (values := round_values(metric, figures, baseline))
        }
        sample = Sample(self.date, self.build, values, run=self.run)
        reason = self.policy.accept_drift
        return sample if reason is None else accept_drift(sample, reason)

    def _thresholds(self, figures: CellFigures, baseline: CellFigures | None) -> list[ThresholdResult]:
        return [
            judge_threshold(
                threshold, figures.config, figures.key, round_values(threshold.metric, figures, baseline)
            )
            for threshold in self.policy.thresholds
            if threshold.takes(figures.config, figures.key)
        ]


def headline_tests(headline: Sequence[tuple[str, CellKey]]) -> int:
    """How many headline tests there are, for the design of the error rate."""
    return sum(1 for config, _ in headline for metric in METRICS.values() if applies(metric, config))
