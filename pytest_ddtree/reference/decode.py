"""One step of plain decoding: one token for every running request."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .choosing import final_logits, is_plain, next_token
from .logprobs import add_output
from .model import Rows
from .request import Request
from .runtime import Runtime
from .spans import RowSpan


def decode(runtime: Runtime, requests: Sequence[Request]) -> int:
    """Emit one token per request (all hold a slot for it); returns the number of tokens emitted."""
    spans: list[RowSpan] = []
    slots: list[int] = []
    for row, request in enumerate(requests):
        table = request.table().table
        spans.append(RowSpan(row, 1, table.clip(0, request.kv_length)))
        slots.append(table.clip(request.kv_length, request.kv_length + 1)[0][0])
    tokens = np.asarray([request.output[-1] for request in requests], dtype=np.int64)
    positions = np.asarray([request.kv_length for request in requests], dtype=np.int64)
    stream, _ = runtime.target.forward(
        Rows(tokens, positions, np.asarray(slots, dtype=np.int64), spans, [None] * len(spans)), runtime.pool
    )
    logits = runtime.target.logits(stream)
    best = logits.argmax(axis=-1).tolist()
    for index, request in enumerate(requests):
        request.kv_length += 1
        row = logits[index]
        plain = is_plain(request)
        token = best[index] if plain else next_token(request, request.params, row, request.length)
        if request.logprobs is not None:
            add_output(request, final_logits(request, row, ()) if request.params.edits_logits else row, token)
        request.emit([token], runtime.hooks)
    return len(requests)
