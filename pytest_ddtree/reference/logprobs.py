"""Log-probabilities that a request asked for."""

from __future__ import annotations

import numpy as np

from .arrays import F32
from .request import Logprob, Request
from .sampling import log_softmax

ROWS_AT_ONCE = 256
"""Rows whose logits are held at once (a row is the whole vocabulary)."""


def top_entries(row: F32, top: int) -> list[Logprob]:
    """The ``top`` best tokens of a row of log-probabilities, best first, equal values by id."""
    top = min(top, len(row))
    if top <= 0:
        return []
    bound = np.partition(row, len(row) - top)[len(row) - top]
    ids = np.flatnonzero(row >= bound)
    ids = ids[np.argsort(-row[ids], kind="stable")][:top]
    return [(float(row[token]), int(token)) for token in ids]


def add_output(request: Request, logits: F32, token: int) -> None:
    """Score an emitted token; ``logits`` is the row it was drawn from, after bias and penalties.

    As SGLang does, the row is divided by the temperature first when sampling.
    """
    options, result = request.submission.logprobs, request.logprobs
    if options is None or result is None:
        return
    temperature = request.params.temperature
    row = log_softmax(logits if request.params.greedy else logits / np.float32(temperature))
    result.output_tokens.append((float(row[token]), token))
    if options.top:
        result.output_top.append(top_entries(row, options.top))
    if options.token_ids:
        result.output_ids.append([(float(row[wanted]), wanted) for wanted in options.token_ids])


def open_input(request: Request) -> None:
    """The first scored prompt position: nothing precedes what is scored, so its values are None."""
    options, result = request.submission.logprobs, request.logprobs
    if options is None or result is None:
        return
    result.input_tokens.append((None, int(request.prompt[options.start])))
    if options.top:
        result.input_top.append(None)
    if options.token_ids:
        result.input_ids.append(None)


def add_input(request: Request, logits: F32, first: int) -> None:
    """Score prompt tokens: row i of ``logits`` predicts the token at position first + i."""
    options, result = request.submission.logprobs, request.logprobs
    if options is None or result is None:
        return
    rows = log_softmax(logits)
    tokens = request.prompt[first : first + len(rows)]
    values = rows[np.arange(len(rows)), tokens]
    result.input_tokens.extend(zip(values.tolist(), tokens.tolist(), strict=True))
    if options.top:
        result.input_top.extend(top_entries(row, options.top) for row in rows)
    if options.token_ids:
        result.input_ids.extend(
            [(float(row[wanted]), wanted) for wanted in options.token_ids] for row in rows
        )
