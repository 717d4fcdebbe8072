"""What an answer does after its natural end: a model loops there, and a drafter loves loops."""

from __future__ import annotations

import sys
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from pytest_ddtree.client.records import Record

_TAIL = 64
_TAIL_RATIO = 0.5


@dataclass(frozen=True, slots=True)
class EndingLimits:
    """When a cell's answers are no longer natural text."""

    after_end: float = 0.05
    """The largest share of output tokens that may come after an end-of-sequence token; for its size see `looping`."""
    tail_ratio: float = _TAIL_RATIO
    """An answer loops when the last 64 tokens have a smaller share of distinct 4-grams."""
    looping: float = 0.05
    """The largest share of answers that may loop: prompts are chosen on the baseline, and an answer that leaves its path at a
    near-tie may end in a loop there. Half of such an answer repeats itself and costs a third of its steps or more: 5 % of them
    are worth at most 2 % of the tok/s."""
    alone: int = 16
    """From so many answers on a single one may loop, and a single one end early, whatever its share is."""
    each_round: bool = False
    """Whether a round stands for itself, not for all answers of its cell."""


UNCHOSEN = EndingLimits(after_end=0.02, alone=sys.maxsize, each_round=True)
"""For a round of a server that can choose other prompts: that costs little, and what one round bears, others exceed."""

COMPARED = EndingLimits(after_end=0.25, looping=0.25)
"""For builds that answer the same prompts in turns, where only their ratio is told: a loop flatters all of them, and one that a
single build runs into, after a near-tie, is noise of the ratio, which its interval holds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Endings:
    """How natural the answers of a cell are."""

    answers: int
    tokens: int
    tokens_after_end: int
    most_after_end: int
    """Of them in the one answer that has most."""
    looping: int
    distinct_mean: float
    """Mean over answers of the share of distinct 4-grams; 1.0 where nothing repeats."""
    distinct_least: float

    @property
    def after_end_share(self) -> float:
        return self.tokens_after_end / self.tokens if self.tokens else 0.0

    def invalid(self, limits: EndingLimits | None = None, *, coming: int = 0) -> str | None:
        """Why a cell with these answers says nothing about natural text; None where it does, or may yet.

        `coming` answers are certain to follow: a loop in the first round is no worse than one in the last.
        """
        limits = limits or EndingLimits()
        answers = self.answers + coming
        early = answers >= limits.alone and self.tokens_after_end == self.most_after_end
        share = self.after_end_share * self.answers / answers if answers else 0.0
        if share > limits.after_end and not early:
            return (
                f"{self.after_end_share:.1%} of the output tokens came after the natural end of their answer "
                f"(at most {limits.after_end:.1%}): choose prompts with longer answers or a shorter output"
            )
        borne = max(int(limits.looping * answers), 1 if answers >= limits.alone else 0)
        if self.looping > borne:
            whole = f", with {coming} to come" if coming else ""
            return (
                f"{self.looping} of {self.answers} answers{whole} end in a loop (fewer than {limits.tail_ratio:.0%} distinct "
                f"4-grams in their last 64 tokens; at most {borne} may), which flatters every drafter: with more rounds of "
                "more requests one weighs less, another workload has others"
            )
        return None


def endings(records: Sequence[Record], eos: Collection[int], limits: EndingLimits | None = None) -> Endings:
    """How natural the answers that are `ok` and came with token ids are."""
    limits = limits or EndingLimits()
    answers = [record.output_ids for record in records if record.ok and record.output_ids]
    ratios = [distinct_ratio(ids) for ids in answers]
    after = [tokens_after_end(ids, eos) for ids in answers]
    return Endings(
        answers=len(answers),
        tokens=sum(map(len, answers)),
        tokens_after_end=sum(after),
        most_after_end=max(after, default=0),
        looping=sum(loops(ids, limits.tail_ratio) for ids in answers),
        distinct_mean=sum(ratios) / len(ratios) if ratios else 1.0,
        distinct_least=min(ratios, default=1.0),
    )


def together(parts: Sequence[Endings]) -> Endings:
    """The answers of several rounds as one; `parts` is not empty."""
    answers = sum(one.answers for one in parts)
    distinct = sum(one.distinct_mean * one.answers for one in parts)
    return Endings(
        answers=answers,
        tokens=sum(one.tokens for one in parts),
        tokens_after_end=sum(one.tokens_after_end for one in parts),
        most_after_end=max(one.most_after_end for one in parts),
        looping=sum(one.looping for one in parts),
        distinct_mean=distinct / answers if answers else 1.0,
        distinct_least=min(one.distinct_least for one in parts),
    )


def tokens_after_end(ids: Sequence[int], eos: Collection[int]) -> int:
    """Tokens after the first end-of-sequence token."""
    first = next((index for index, token in enumerate(ids) if token in eos), len(ids) - 1)
    return max(0, len(ids) - first - 1)


def distinct_ratio(ids: Sequence[int], n: int = 4) -> float:
    """Distinct n-grams / n-grams; 1.0 where there is no n-gram."""
    grams = [tuple(ids[start : start + n]) for start in range(len(ids) - n + 1)]
    return len(set(grams)) / len(grams) if grams else 1.0


def loops(ids: Sequence[int], ratio: float = _TAIL_RATIO) -> bool:
    """Whether the end of an answer repeats itself; answers under 32 tokens are too short to say."""
    tail = ids[-_TAIL:]
    return len(tail) >= _TAIL // 2 and distinct_ratio(tail) < ratio
