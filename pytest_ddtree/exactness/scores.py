"""What a judge said of answers, so that it is not asked twice about the same tokens after the same prompt."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from pytest_ddtree.client.records import TokenScore


class Scores:
    """Scores of one judge. What it thinks of a token depends on the tokens before it alone, so a shorter answer has those of a longer."""

    def __init__(self) -> None:
        self._known: dict[tuple[tuple[int, ...], int], list[tuple[TokenScore, ...]]] = {}

    def find(
        self, prompt: tuple[int, ...], emitted: Sequence[int], *, top: int
    ) -> tuple[TokenScore, ...] | None:
        """One score for each emitted token with `top` alternatives; None unless all of them are known."""
        for scores in self._known.get((prompt, top), ()):
            if len(scores) >= len(emitted) and all(
                score.token_id == token_id for score, token_id in zip(scores, emitted, strict=False)
            ):
                return scores[: len(emitted)]
        return None

    def add(self, prompt: tuple[int, ...], scores: tuple[TokenScore, ...], *, top: int) -> None:
        """Keep the scores of an answer. Raises ValueError unless they are those of all its tokens, from the prompt's end on."""
        if (
            not scores
            or scores[0].position != len(prompt)
            or any(b.position - a.position != 1 for a, b in pairwise(scores))
        ):
            raise ValueError(
                f"scores do not begin at {len(prompt)}, where the prompt ends, or leave positions out"
            )
        self._known.setdefault((prompt, top), []).append(scores)
