"""Verify steps read from the chunks of a stream, only where chunks are proved to be steps."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from pytest_ddtree.client.records import Record


@dataclass(frozen=True, slots=True)
class Place:
    """Where in the verify steps a token was emitted, all counted from 0."""

    step: int
    index: int
    size: int
    """Tokens of that step, its bonus token included."""

    def __str__(self) -> str:
        what = "its bonus token" if self.index == self.size - 1 else f"tree depth {self.index + 1}"
        return f"verify step {self.step}, token {self.index + 1} of {self.size} ({what})"


def step_sizes(record: Record) -> tuple[int, ...] | None:
    """Tokens of each verify step after the first token, which is prefill's; None where that is not proved.

    Proved means: the first chunk is the one token of prefill, and there are as many further chunks as the
    server counted verify steps. A step sends at most one chunk, so two steps merged into one would be missed
    in the count. Chunks that arrived in one read are still counted apart. The last step may be cut by the
    length limit.
    """
    steps, chunks = record.verify_steps, record.chunks
    if steps is None or not record.exact_counts:
        return None
    if len(chunks) != steps + 1 or chunks[0].tokens != 1:
        return None
    return tuple(later.tokens - earlier.tokens for earlier, later in pairwise(chunks))


def place_in_step(record: Record, position: int) -> Place | None:
    """The place of the token at `position` of the answer.

    None for the first token, which is prefill's, and where steps are not proved.
    """
    sizes = step_sizes(record)
    if sizes is None:
        return None
    start = 1
    for step, size in enumerate(sizes):
        if start <= position < start + size:
            return Place(step, position - start, size)
        start += size
    return None
