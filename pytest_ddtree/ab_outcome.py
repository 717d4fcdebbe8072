"""What came out of a comparison of builds for one config: what fails the test, what is said, what is stored."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from pytest_ddtree.exactness.verdict import Verdict
from pytest_ddtree.report.comparison import fault_line, lines, undecided_lines, unrest_line, verdict_lines
from pytest_ddtree.results.change import Change, Comparison
from pytest_ddtree.results.gates import Gate


@dataclass(frozen=True, slots=True)
class AbOutcome:
    """What became of one config on all builds."""

    config: str
    judged: tuple[tuple[str, str, Verdict], ...]
    """(build, whose non-speculative answers it was judged against, verdict)."""
    comparisons: tuple[Comparison, ...] = field(default_factory=tuple)
    """Each other build against the base."""
    strict: bool = False
    """Whether what is undecided fails."""
    stopped: str = ""
    """Why there were no more passes although something was undecided."""
    faults: tuple[tuple[str, str], ...] = ()
    """(build, what is wrong with its server although its answers may be right)."""

    @property
    def failures(self) -> tuple[str, ...]:
        """What fails the test: a corrupt build, a metric that got worse beyond noise, and, if strict, one that may have."""
        corrupt = [
            f"{self.config}: build {build} is {verdict.kind} against the answers of {against}: {'; '.join(verdict.reasons)}"
            for build, against, verdict in self.judged
            if not verdict.passed
        ]
        slower = [
            f"build {one.now} is worse than {one.before}: {change.where}: {change.metric} x {change.ratio[0]:.3f}"
            for one in self.comparisons
            if one.confirmed
            for change in one.worse
        ]
        return (
            *corrupt,
            *self._wrong,
            *slower,
            *((*self.unconfirmed, *self._undecided()) if self.strict else ()),
        )

    @property
    def _wrong(self) -> tuple[str, ...]:
        return tuple(fault_line(build, self.config, text) for build, text in self.faults)

    @property
    def unconfirmed(self) -> tuple[str, ...]:
        """What the first passes show to be worse where further ones could not be made: neither a verdict nor a pass."""
        return tuple(
            f"build {one.now} looks worse than {one.before}, which is not confirmed: {change.where}: "
            f"{change.metric} x {change.ratio[0]:.3f}; {self.stopped}"
            for one in self.comparisons
            if not one.confirmed
            for change in one.worse
        )

    @property
    def warnings(self) -> tuple[str, ...]:
        """What may be a loss and fails nothing."""
        return () if self.strict else self._undecided()

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader of any report must know beside verdicts and gates: why there were no more passes, how quiet the machine was,
        whose answers loop, whose starts take longer."""
        restless = (
            f"{self.config}, {one.now} / {one.before}: {line}"
            for one in self.comparisons
            if (line := unrest_line(one)) is not None
        )
        noted = (
            f"{self.config}, {one.now} / {one.before}: {note}"
            for one in self.comparisons
            for note in one.notes
        )
        return (*((f"{self.config}: {self.stopped}",) if self.stopped else ()), *restless, *noted)

    @property
    def gates(self) -> tuple[tuple[str, Gate], ...]:
        """(build, gate) of everything that is judged, and of what got worse elsewhere."""
        return tuple(
            (one.now, self._gate(one, change))
            for one in self.comparisons
            for change in one.changes
            if change.judged or change.outcome == "worse"
        )

    @property
    def properties(self) -> list[tuple[str, str]]:
        """What the test of it tells JUnit: the outcome of each build, and each sentence of what is undecided."""
        found = [(f"ddtree.build.{one.now}", _worst(one)) for one in self.comparisons]
        found += [("ddtree.fault", text) for text in self._wrong]
        found += [("ddtree.undecided", text) for text in (*self.unconfirmed, *self._undecided())]
        found += [
            ("ddtree.unrest", f"{one.unrest:.3f}") for one in self.comparisons if one.unrest is not None
        ]
        return found + ([("ddtree.stopped", self.stopped)] if self.stopped else [])

    @property
    def records(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """What is stored of it, (kind, fields): what any report is made of, that of the session too."""
        for build, gate in self.gates:
            yield "gate", {"build": build, "config": self.config, "gate": gate.as_json()}
        for note in self.notes:
            yield "warning", {"text": note}
        yield "compared", {"config": self.config}

    def lines(self) -> list[str]:
        """The tables of exactness and ratios."""
        text = [*verdict_lines(self.judged), *self._wrong]
        for comparison in self.comparisons:
            text += ["", *lines(comparison)]
        if self.stopped:
            text.append(self.stopped)
        return text

    def _gate(self, comparison: Comparison, change: Change) -> Gate:
        what = f"build {comparison.now}, {self._place(change.where)}"
        gate = change.gate(f"build {comparison.before}", what=what)
        return (
            gate
            if comparison.confirmed or gate.outcome != "regressed"
            else replace(gate, outcome="undecided", unconfirmed=True)
        )

    def _place(self, where: str) -> str:
        return where if where.startswith(self.config) else f"{self.config}, {where}"

    def _undecided(self) -> tuple[str, ...]:
        return tuple(
            f"build {one.now} against {one.before}: {self.config}: {text}"
            for one in self.comparisons
            for text in undecided_lines(one)
        )


def _worst(comparison: Comparison) -> str:
    """The outcome of one build in a word or two."""
    if comparison.worse and not comparison.confirmed:
        return "not confirmed"
    found = {change.outcome for change in comparison.changes}
    order = ("worse", "undecided", "better", "fine")
    return next((outcome for outcome in order if outcome in found), "not compared")
