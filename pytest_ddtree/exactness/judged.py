"""Answers judged token by token: the gap of every emitted token under the baseline, given the prefix that was
really emitted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pytest_ddtree.client.records import TokenScore

_CONTEXT = 3

UNSEEN_GAP = 1e-9
"""Nats: the gap of a token that is known not to be the argmax while nothing else is known about it. Never shown as a figure."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedAnswer:
    """One answer under teacher forcing.

    `scores` holds one `TokenScore` per judged position, in order; at level first-divergence that is every
    position up to and with the first one that differs from the baseline's answer. `identical` says whether
    the tokens are the baseline's own (None: there is no answer of the baseline to compare with). `asked` is a digest of
    the prompt's ids: the clauses of the contract ask the same prompts under names of their own.
    """

    tag: str
    prompt_tokens: int
    scores: tuple[TokenScore, ...]
    identical: bool | None = None
    asked: bytes | None = None

    @property
    def prompt(self) -> bytes | str:
        """What answers to the same prompt have in common: its digest, or the tag where that is all there is."""
        return self.tag if self.asked is None else self.asked

    @property
    def tokens(self) -> int:
        return len(self.scores)

    def gaps(self) -> NDArray[np.float64]:
        """Gaps in nats, shape (tokens,)."""
        return np.fromiter((score.gap for score in self.scores), dtype=np.float64, count=len(self.scores))

    @property
    def off(self) -> int:
        """Tokens with a gap above 0: not the argmax. Another id with gap 0 is a tie of logits and does not
        count."""
        return int(np.count_nonzero(self.gaps() > 0.0))

    @property
    def events(self) -> int:
        """`off` without repetitions: a token that is not the argmax counts once per different run-up.

        A healthy model that loops over a near-tie emits the same non-argmax token once a round. These are one
        event, not many: the 3 tokens before it and the token itself are the same each time.
        """
        return len({self._run_up(index) for index, score in enumerate(self.scores) if score.gap > 0.0})

    def peak(self) -> tuple[bytes | str, int, tuple[int, ...]]:
        """Which token has the largest gap: the same in every answer that takes the same way from the same prompt.

        Raises ValueError without a judged token.
        """
        at = int(np.argmax(self.gaps()))
        return self.prompt, self.scores[at].position, self._run_up(at)

    def _run_up(self, index: int) -> tuple[int, ...]:
        return tuple(score.token_id for score in self.scores[max(0, index - _CONTEXT) : index + 1])


@dataclass(frozen=True, slots=True, kw_only=True)
class WorstToken:
    """The judged token with the largest gap of an answer."""

    tag: str
    position: int
    """Index in the answer, 0 for its first token."""
    score: TokenScore

    @property
    def rank(self) -> int | None:
        """Rank of the token among the judge's best, 1 for the argmax; None when it is not among them."""
        for rank, (token_id, _) in enumerate(self.score.top, start=1):
            if token_id == self.score.token_id:
                return rank
        return None


def all_gaps(answers: Sequence[JudgedAnswer]) -> NDArray[np.float64]:
    """The gaps of all answers one after the other, shape (all tokens,)."""
    return np.concatenate([answer.gaps() for answer in answers]) if answers else np.zeros(0)


def worst_tokens(answers: Sequence[JudgedAnswer], most: int = 3) -> tuple[WorstToken, ...]:
    """The worst token of each of the worst answers, largest gap first, gaps of 0 left out."""
    worst: list[WorstToken] = []
    for answer in answers:
        gaps = answer.gaps()
        if gaps.size == 0:
            continue
        index = int(np.argmax(gaps))
        if gaps[index] > 0.0:
            score = answer.scores[index]
            worst.append(
                WorstToken(tag=answer.tag, position=score.position - answer.prompt_tokens, score=score)
            )
    worst.sort(key=lambda token: -token.score.gap)
    return tuple(worst[:most])
