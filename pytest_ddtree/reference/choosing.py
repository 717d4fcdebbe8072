"""The next token of a request: bias, penalties, minimum length, then argmax or the draw of its seed."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .arrays import F32
from .request import Request
from .sampling import SamplingParams, choose, edited


def is_plain(request: Request) -> bool:
    """True when the bare argmax is the answer, so that a whole batch can share one call."""
    return request.params.greedy and not request.params.edits_logits


def next_token(
    request: Request, params: SamplingParams, logits: F32, position: int, pending: Sequence[int] = ()
) -> int:
    """The token that ``position`` determines.

    logits: [vocab]; pending: tokens accepted in this step and not yet part of the request's answer, so that
    penalties and the minimum length are exact inside a draft tree too.
    """
    if params.edits_logits:
        logits = final_logits(request, logits, pending)
    return choose(logits, params, request.submission.seed, position)


def final_logits(request: Request, logits: F32, pending: Sequence[int]) -> F32:
    """Logits after everything that edits them; a copy."""
    params = request.params
    counts, seen = request.counts, request.seen
    if pending:
        counts = dict(counts)
        for token in pending:
            counts[token] = counts.get(token, 0) + 1
        if seen is not None:
            seen = seen | set(pending)
    logits = edited(logits, params, counts, seen or ())
    if len(request.output) + len(pending) < params.min_new_tokens:
        ending = np.fromiter(request.checker.ending_ids, dtype=np.int64)
        logits[ending[ending < len(logits)]] = -np.inf
    return logits
