"""Processing prompts, piece by piece, many requests in one pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .arrays import F32
from .attention import GROUP_ROWS
from .choosing import final_logits, next_token
from .logprobs import ROWS_AT_ONCE, add_input, add_output, open_input
from .model import Rows
from .request import Request
from .runtime import Runtime
from .spans import RowSpan
from .stops import Finish
from .tree import causal_mask


@dataclass(frozen=True, slots=True)
class Piece:
    """Positions begin .. end - 1 of one request; the request holds slots for them."""

    request: Request
    begin: int
    end: int

    @property
    def completes(self) -> bool:
        return self.end == self.request.fill_length()


def prefill(runtime: Runtime, pieces: Sequence[Piece]) -> None:
    """Run the pieces; requests whose prompt is complete emit their first token."""
    spans: list[RowSpan] = []
    masks: list[F32 | None] = []
    row = 0
    for piece in pieces:
        table = piece.request.table().table
        count = piece.end - piece.begin
        spans.append(RowSpan(row, count, table.clip(0, piece.begin), table.clip(piece.begin, piece.end)))
        masks.append(causal_mask(count) if 1 < count <= GROUP_ROWS else None)
        row += count
    slots = np.concatenate([piece.request.table().table.slots(piece.begin, piece.end) for piece in pieces])
    positions = np.concatenate([np.arange(piece.begin, piece.end) for piece in pieces])
    tokens = np.concatenate([piece.request.tokens(piece.begin, piece.end) for piece in pieces])
    draft = runtime.draft
    capture = draft.model.config.target_layer_ids if draft is not None else ()
    stream, features = runtime.target.forward(
        Rows(tokens, positions, slots, spans, masks), runtime.pool, capture=capture
    )
    if draft is not None and features is not None:
        draft.model.add_context(features, positions, slots, draft.pool)
    last_rows: list[int] = []
    starting: list[Request] = []
    for piece, span in zip(pieces, spans, strict=True):
        _score_prompt(runtime, piece, stream[span.begin : span.begin + span.rows])
        piece.request.kv_length = piece.end
        if piece.completes and not piece.request.output:
            last_rows.append(span.begin + span.rows - 1)
            starting.append(piece.request)
    if starting:
        _first_tokens(runtime, starting, runtime.target.logits(stream[last_rows]))


def _first_tokens(runtime: Runtime, starting: Sequence[Request], logits: F32) -> None:
    for request, row in zip(starting, logits, strict=True):
        if request.params.max_new_tokens == 0:
            request.finish = Finish("length")
            continue
        token = next_token(request, request.params, row, request.length)
        if request.logprobs is not None:
            add_output(request, final_logits(request, row, ()) if request.params.edits_logits else row, token)
        request.emit([token], runtime.hooks)


def _score_prompt(runtime: Runtime, piece: Piece, stream: F32) -> None:
    """Input log-probabilities of the tokens that the piece's rows predict."""
    options = piece.request.submission.logprobs
    if options is None or piece.request.output:
        return
    if piece.begin <= options.start < piece.end:
        open_input(piece.request)
    # Row at position p predicts the token at p + 1; the first scored token has no value of its own.
    low = max(piece.begin, options.start)
    high = min(piece.end, len(piece.request.prompt) - 1)
    for begin in range(low, high, ROWS_AT_ONCE):
        end = min(begin + ROWS_AT_ONCE, high)
        logits = runtime.target.logits(stream[begin - piece.begin : end - piece.begin])
        add_input(piece.request, logits, begin + 1)
