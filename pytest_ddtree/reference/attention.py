"""Attention over a paged pool, reading contiguous extents as views wherever rows are few.

A pass holds rows of several requests. Requests with few rows each (decoding, verifying, drafting) and similar
context length form a group with one padded score buffer, so that the softmax of the group is a handful of calls.
The rows' own keys (one token, a draft tree, a drafter's block) fill the last columns, the context those before, so that
the padding of shorter contexts comes first. A draft tree's own keys are read back from the pool, where they mostly
continue the context: one product serves both. Long pieces of a prompt and large trees gather their keys once a layer and
go block by block.
"""

from __future__ import annotations

from collections.abc import Sequence

from .arrays import F32
from .attention_block import BlockKernel
from .attention_group import GroupKernel
from .checkpoint import DecoderConfig
from .kv_pool import KVPool
from .numerics import Numerics
from .spans import Kernel, RowSpan
from .workspace import Workspace

GROUP_ROWS = 64
"""Requests with at most this many rows in a pass are handled in groups, and those whose rows' keys are not in the pool."""
SAFE_SCORE = 60.0
"""Sums of exp over any context stay far inside float32 up to this score."""


def plan_attention(
    spans: Sequence[RowSpan],
    masks: Sequence[F32 | None],
    pool: KVPool,
    config: DecoderConfig,
    numerics: Numerics,
    workspace: Workspace,
    *,
    bounded: bool = False,
) -> list[Kernel]:
    """Kernels that together cover all spans.

    queries are [rows, heads, head_dim] (rotated, scaled), keys and values [rows, kv_heads, head_dim], out
    [rows, heads, head_dim], all for the whole pass. ``masks`` holds one additive [rows, rows] array per span, or
    None where the rows see each other freely (a drafter's block), or only themselves (one row), or, being more than
    GROUP_ROWS of a prompt, what came before them.

    ``bounded`` promises that no score exceeds SAFE_SCORE in absolute value; the softmax then needs no shift.

    Spans must be ordered by ``begin`` without gaps.
    """
    kernels: list[Kernel] = []
    group: list[int] = []
    key: tuple[int, int, bool, bool] | None = None

    def close() -> None:
        if group:
            kernels.append(
                GroupKernel(
                    [spans[i] for i in group],
                    [masks[i] for i in group],
                    pool,
                    config,
                    numerics,
                    workspace,
                    bounded,
                )
            )
            group.clear()

    for index, span in enumerate(spans):
        if span.rows > GROUP_ROWS and span.own:
            close()
            key = None
            kernels.append(BlockKernel(span, masks[index], pool, config, numerics, workspace, bounded))
            continue
        this = (span.rows, (span.past >> 6).bit_length(), masks[index] is None, not span.own)
        if this != key:
            close()
            key = this
        group.append(index)
    close()
    return kernels
