"""Judged answers boiled down to what the rule looks at, one number per answer: also what the simulation
makes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pytest_ddtree.exactness.judged import JudgedAnswer

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """Arrays of shape (answers,), answers without judged tokens left out."""

    prompt: Ints
    """Which prompt it answers, 0 .. prompts - 1: the cluster."""
    tokens: Ints
    off: Ints
    """Tokens that are not the argmax."""
    events: Ints
    """The same without repetitions in a loop, see `JudgedAnswer.events`."""
    largest: Floats
    """Largest gap, nats."""
    peak: Ints
    """Which token that is: the same number for the same token after the same tokens."""
    gap_sum: Floats
    """Sum of the gaps, nats."""

    @property
    def all_tokens(self) -> int:
        return int(self.tokens.sum())

    @property
    def all_off(self) -> int:
        return int(self.off.sum())

    @property
    def share(self) -> float:
        return self.all_off / self.all_tokens if self.tokens.size else 0.0

    @property
    def largest_of_all(self) -> float:
        return float(self.largest.max()) if self.largest.size else 0.0

    def answers_above(self, threshold: float) -> int:
        """Answers with a gap above so many nats; those that have it at the same token count as one."""
        return int(np.unique(self.peak[self.largest > threshold]).size)

    def by_prompt(self) -> tuple[Ints, Ints]:
        """(events, tokens) of each prompt, shape (prompts,)."""
        prompts = int(self.prompt.max()) + 1 if self.prompt.size else 0
        events = np.bincount(self.prompt, weights=self.events, minlength=prompts).astype(np.int64)
        return events, np.bincount(self.prompt, weights=self.tokens, minlength=prompts).astype(np.int64)


def tally(answers: Sequence[JudgedAnswer]) -> Tally:
    """The tally of judged answers."""
    judged = [answer for answer in answers if answer.tokens]
    numbers: dict[bytes | str, int] = {}
    peaks: dict[object, int] = {}
    gaps = [answer.gaps() for answer in judged]
    return Tally(
        prompt=np.asarray(
            [numbers.setdefault(answer.prompt, len(numbers)) for answer in judged], dtype=np.int64
        ),
        tokens=np.asarray([answer.tokens for answer in judged], dtype=np.int64),
        off=np.asarray([np.count_nonzero(row > 0.0) for row in gaps], dtype=np.int64),
        events=np.asarray([answer.events for answer in judged], dtype=np.int64),
        largest=np.asarray([row.max() for row in gaps], dtype=np.float64),
        peak=np.asarray([peaks.setdefault(answer.peak(), len(peaks)) for answer in judged], dtype=np.int64),
        gap_sum=np.asarray([row.sum() for row in gaps], dtype=np.float64),
    )


def dispersion_of(events: Ints, tokens: Ints) -> float:
    """Pearson's dispersion of counts in so many tokens, shape (clusters,): 1 for independent rare events.

    At least 1, and 1 where there are fewer than two clusters or no event.
    """
    if events.size < 2 or not events.any():
        return 1.0
    expected = events.sum() / tokens.sum() * tokens
    return max(1.0, float(((events - expected) ** 2 / expected).sum()) / (events.size - 1))
