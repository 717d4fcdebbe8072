"""The same problem solved by the baseline and by a config: what the pair means. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from pytest_ddtree.client.records import Record
from pytest_ddtree.coding.checking import Outcome, printable
from pytest_ddtree.coding.extract import STATUS_TEXT, Extraction
from pytest_ddtree.coding.stats import Comparison, Gate, compared
from pytest_ddtree.exactness.verdict import Verdict

Judgement = Literal[
    "fine", "cut", "rounding", "unexplained", "lost", "corrupt", "garbled", "unreliable", "unjudged"
]
"""What a pair means. `fine`: nothing lost. `cut`: both answers ran into the token limit, which proves nothing. `rounding`: lost
through a tie within the noise floor. `unexplained`: lost where only texts could be compared, so that rounding cannot be told from a
fault. `lost`: the baseline solves it, this config does not, and no rounding explains it. `corrupt`: the tokens are not the target
model's, whether the code passes or not. `garbled`: the same tokens, but another text. `unreliable`: the same answer passed once and
failed once, which says something about the checker alone. `unjudged`: its tokens could not be judged, an error and never a pass."""

CONTRADICTORY: Final = frozenset({"malformed", "short", "empty"})
"""Outcomes of an answer that ended and is not what was asked for, or not what the server itself counted."""

TOLERATED: Final = frozenset({"rounding", "unexplained"})
"""Counted and shown; they fail with `--ddtree-strict` only."""


def contradiction(record: Record) -> str | None:
    """What an answer contradicts, in words: its request, or the server's own count of it; None for one that agrees with both.

    An answer that did not end (no finish reason) contradicts nothing: it is not there.
    """
    if record.outcome not in CONTRADICTORY or record.finish_reason is None:
        return None
    return record.error or record.outcome


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

    @property
    def cut(self) -> bool:
        """Whether the answer ran into its token limit and no code of it passes."""
        return not self.passed and (self.record.finish_reason or {}).get("type") == "length"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """The baseline's answer and a config's answer to one problem; `verdict` judges the config's tokens (None: texts alone)."""

    baseline: Solved
    other: Solved
    verdict: Verdict | None
    baseline_again: tuple[Solved, ...] = ()
    other_again: tuple[Solved, ...] = ()
    """What came of asking again: only flipped problems are, gains like losses, a number of times that was fixed before."""

    @property
    def problem(self) -> str:
        return self.other.problem

    @property
    def flipped(self) -> bool:
        """Whether the first answers were judged differently."""
        return self.baseline.passed != self.other.passed

    @property
    def baseline_passes(self) -> bool:
        """What most of the baseline's runs say; the first one decides a draw."""
        return _majority(self.baseline, self.baseline_again)

    @property
    def other_passes(self) -> bool:
        """What most of this config's runs say; the first one decides a draw."""
        return _majority(self.other, self.other_again)

    @property
    def identical(self) -> bool:
        """Whether the answers are the same: by ids where both servers send them, else by text."""
        ids = self.baseline.record.output_ids, self.other.record.output_ids
        if all(ids):
            return ids[0] == ids[1]
        return self.baseline.record.text == self.other.record.text

    @property
    def judgement(self) -> Judgement:
        """What the pair means for its test."""
        kind = None if self.verdict is None else self.verdict.kind
        if kind == "corrupt" or contradiction(self.other.record) is not None:
            return "corrupt"
        if self.identical and self.baseline.record.text != self.other.record.text:
            return "garbled"
        if kind == "unknown":
            return "unjudged"
        if self.baseline.cut and self.other.cut:
            return "cut"
        if self.baseline_passes == self.other_passes:
            return "fine"
        if self.identical:
            return "unreliable"
        if self.other_passes:
            return "fine"
        return "unexplained" if kind is None else "rounding" if kind == "tie" else "lost"

    def reruns(self) -> str:
        """One line on what came of asking again; "" where it was not."""
        if not (self.baseline_again or self.other_again):
            return ""
        base, other = (self.baseline, *self.baseline_again), (self.other, *self.other_again)
        kind = "loss" if self.baseline.passed else "gain"
        stays = "confirmed" if self.baseline_passes != self.other_passes else "not confirmed"
        return (
            f"{self.problem}: {kind}, {stays}: passed {sum(s.passed for s in base)} of {len(base)} on the baseline, "
            f"{sum(s.passed for s in other)} of {len(other)} here"
        )

    def describe(self) -> str:
        """Both codes and what became of them, for the report of a failure."""
        head = f"{self.problem}: {self.judgement}"
        judged = (
            "judged by text: tokens could not be compared" if self.verdict is None else self.verdict.summary()
        )
        reasons = () if self.verdict is None else self.verdict.reasons
        wrong = contradiction(self.other.record)
        if wrong is not None and wrong not in reasons:
            reasons = (*reasons, wrong)
        return "\n".join(
            [
                f"{head}: {judged}",
                *(f"  because {reason}" for reason in reasons),
                *([self.reruns()] if self.reruns() else []),
                *_shown("baseline", self.baseline),
                *_shown("this config", self.other),
            ]
        )


def _majority(first: Solved, again: Sequence[Solved]) -> bool:
    runs = [first.passed, *(one.passed for one in again)]
    ayes = 2 * sum(runs)
    return first.passed if ayes == len(runs) else ayes > len(runs)


def _shown(who: str, solved: Solved) -> list[str]:
    lines = ["", f"--- {who}: {solved.state} ({solved.record.completion_tokens} tokens)"]
    if solved.extraction.code is None:
        return [*lines, f"no code to run: {STATUS_TEXT[solved.extraction.status]}"]
    if not solved.passed:
        lines.append(solved.outcome.describe())
    return [*lines, printable(solved.extraction.code.rstrip("\n"))]


def telling(pairs: Sequence[Pair]) -> list[Pair]:
    """The pairs that say something about the code: not those where both answers were cut."""
    return [pair for pair in pairs if not (pair.baseline.cut and pair.other.cut)]


def compare_pairs(pairs: Sequence[Pair], gate: Gate) -> Comparison:
    """The paired comparison over all problems that say something. Raises ValueError without any."""
    told = telling(pairs)
    return compared([pair.baseline_passes for pair in told], [pair.other_passes for pair in told], gate)
