"""The same problem solved by the baseline and by a config: what the pair means. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pytest_ddtree.client.records import Record
from pytest_ddtree.coding.checking import Outcome
from pytest_ddtree.coding.extract import STATUS_TEXT, Extraction
from pytest_ddtree.coding.stats import Comparison, Gate, compared
from pytest_ddtree.exactness.verdict import Verdict

Judgement = Literal["fine", "corrupt", "lost", "rounding", "unreliable"]
"""`fine`: nothing lost. `corrupt`: the answer is not the target model's, whether its code passes or not. `lost`: the baseline solves
it and this config does not, with no rounding to explain it. `rounding`: lost through a tie within the noise floor. `unreliable`: the
same tokens passed once and failed once, which says something about the checker alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Solved:
    """One answer to one problem: what was said, what was taken out of it, what became of that."""

    problem: str
    record: Record
    extraction: Extraction
    outcome: Outcome

    @property
    def passed(self) -> bool:
        return self.outcome.passed

    @property
    def state(self) -> str:
        """`pass`, or why not: the outcome, for no answer the extraction's status."""
        return self.extraction.status if self.outcome.status == "no_answer" else self.outcome.status


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """The baseline's answer and a config's answer to one problem; `verdict` judges the config's tokens."""

    baseline: Solved
    other: Solved
    verdict: Verdict

    @property
    def problem(self) -> str:
        return self.other.problem

    @property
    def identical(self) -> bool:
        return self.baseline.record.output_ids == self.other.record.output_ids

    @property
    def judgement(self) -> Judgement:
        """What the pair means for its test."""
        if self.verdict.kind == "corrupt":
            return "corrupt"
        if self.baseline.passed == self.other.passed:
            return "fine"
        if self.identical:
            return "unreliable"
        if self.other.passed:
            return "fine"
        return "rounding" if self.verdict.kind == "tie" else "lost"

    def describe(self) -> str:
        """Both codes and what became of them, for the report of a failure."""
        return "\n".join(
            [
                f"{self.problem}: {self.judgement}: {self.verdict.summary()}",
                *(f"  because {reason}" for reason in self.verdict.reasons),
                *_shown("baseline", self.baseline),
                *_shown("this config", self.other),
            ]
        )


def _shown(who: str, solved: Solved) -> list[str]:
    lines = ["", f"--- {who}: {solved.state} ({solved.record.completion_tokens} tokens)"]
    if solved.extraction.code is None:
        return [*lines, f"no code to run: {STATUS_TEXT[solved.extraction.status]}"]
    if not solved.passed:
        lines.append(solved.outcome.describe())
    return [*lines, solved.extraction.code.rstrip("\n")]


def compare_pairs(pairs: Sequence[Pair], gate: Gate) -> Comparison:
    """The paired comparison over all problems. Raises ValueError without any."""
    return compared([pair.baseline.passed for pair in pairs], [pair.other.passed for pair in pairs], gate)


@dataclass(frozen=True, slots=True, kw_only=True)
class CodingSummary:
    """What a config made of the problems, beside the baseline."""

    config: str
    problems: int
    baseline_passed: int
    passed: int
    identical: int
    lost_to_rounding: int
    corrupt: int
    states: tuple[tuple[str, int, int], ...]
    """(state, how often on the baseline, how often here), most frequent first."""
    comparison: str

    def as_json(self) -> dict[str, Any]:
        """Plain values for stored results."""
        return {name: getattr(self, name) for name in self.__dataclass_fields__}


def summarise(config: str, pairs: Sequence[Pair], gate: Gate) -> CodingSummary:
    """Count what became of the problems. Raises ValueError without any."""
    states = sorted({solved.state for pair in pairs for solved in (pair.baseline, pair.other)})
    counted = [
        (
            state,
            _count(p.baseline.state == state for p in pairs),
            _count(p.other.state == state for p in pairs),
        )
        for state in states
    ]
    return CodingSummary(
        config=config,
        problems=len(pairs),
        baseline_passed=_count(pair.baseline.passed for pair in pairs),
        passed=_count(pair.other.passed for pair in pairs),
        identical=_count(pair.identical for pair in pairs),
        lost_to_rounding=_count(pair.judgement == "rounding" for pair in pairs),
        corrupt=_count(pair.judgement == "corrupt" for pair in pairs),
        states=tuple(sorted(counted, key=lambda row: -row[1] - row[2])),
        comparison=str(compare_pairs(pairs, gate)),
    )


def _count(flags: Iterable[bool]) -> int:
    return sum(1 for flag in flags if flag)
