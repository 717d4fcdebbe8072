"""What every kind of endpoint has in common: error texts and the outcome of an answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from operator import lt
from typing import Any

import orjson

from pytest_ddtree.client.exchange import Exchange
from pytest_ddtree.client.records import Chunk, Outcome, Request

_EXCERPT = 500


def error_text(body: bytes) -> str:
    """The message in an error body, whichever shape it has, else its first characters."""
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError:
        return body.decode("utf-8", "replace").strip()[:_EXCERPT]
    return error_message(value)


def error_message(value: Any) -> str:
    """The message of a decoded error: `{"error": {"message": ...}}`, `{"message": ...}` and the like."""
    if isinstance(value, Mapping):
        for key in ("error", "message", "detail"):
            inner = value.get(key)
            if inner:
                return error_message(inner)
    return value[:_EXCERPT] if isinstance(value, str) else orjson.dumps(value).decode()[:_EXCERPT]


def broken_off(exchange: Exchange) -> tuple[Outcome, str] | None:
    """The outcome of an exchange without a usable answer: no head, or a status other than 200."""
    if exchange.status is not None and exchange.status != 200:
        return "rejected", f"HTTP {exchange.status}: {error_text(exchange.body)}"
    if exchange.status is None:
        return exchange.fault or "reset", exchange.error or "no answer came"
    return None


def unfinished(exchange: Exchange, rest: bytes, tokens: int) -> tuple[Outcome, str]:
    """The outcome of a stream without a finish reason."""
    after = f"after {tokens} tokens"
    if exchange.fault is not None:
        return exchange.fault, f"{exchange.error or exchange.fault} {after}"
    if rest.strip():
        return "cut", f"the stream ended inside an event {after}: {rest[:80].decode('utf-8', 'replace')!r}"
    return "cut", f"the stream ended without a finish reason {after}"


class Tally:
    """Token counts of a stream's events, and then its chunks."""

    __slots__ = ("chunks", "coalesced", "counts", "ends", "tokens")

    def __init__(self, chunks: tuple[Chunk, ...] = ()) -> None:
        self.chunks = chunks
        self.tokens = chunks[-1].tokens if chunks else 0
        self.coalesced = 0
        self.counts: list[int] = []
        self.ends: list[int] = []

    def count(self, tokens: int, end: int) -> None:
        """An event that ends at byte `end` of the body says that there are `tokens` tokens by now."""
        if tokens > self.tokens:
            self.tokens = tokens
            self.counts.append(tokens)
            self.ends.append(end)

    def count_all(self, counts: Sequence[int], ends: Sequence[int]) -> None:
        """`count` of every event of a stream, in order."""
        if not self.counts and all(map(lt, (self.tokens, *counts), counts)):
            self.counts, self.ends = list(counts), list(ends)
            self.tokens = counts[-1] if counts else self.tokens
            return
        for tokens, end in zip(counts, ends, strict=True):
            self.count(tokens, end)

    def stamp(self, exchange: Exchange) -> None:
        """Turn what was counted into chunks with their arrivals."""
        times = exchange.arrivals_of(self.ends)
        self.chunks = tuple(map(Chunk._make, zip(times, self.counts, strict=True)))
        # Where all times differ, as they nearly always do, no read held two events.
        self.coalesced = (
            0
            if len(set(times)) == len(times)
            else len({one for one, later in pairwise(times) if one == later})
        )


def excerpt(data: bytes) -> str:
    """The first bytes of something unreadable, for an error text."""
    shown = data[:120].decode("utf-8", "replace")
    return f"{shown!r}" if len(data) <= 120 else f"{shown!r}... ({len(data)} bytes)"


def finished(
    request: Request, kind: str, tokens: int, *, ids: int | None = None, message: str = "", exact: bool = True
) -> tuple[Outcome, str | None]:
    """The outcome of an answer with a finish reason of this kind.

    `tokens` is the server's count (`exact`) or an estimate, `ids` how many token ids came (None: not sent).
    """
    sampling = request.sampling
    asked = sampling.max_new_tokens
    if kind == "abort":
        return (
            "aborted",
            f"the server aborted the request after {tokens} tokens{': ' * bool(message)}{message}",
        )
    if tokens == 0:
        return "empty", f"the answer ended ({kind}) without a single token"
    # Some builds leave the stop token out of the ids but count it.
    if ids is not None and ids != tokens and not (kind == "stop" and ids == tokens - 1):
        return "malformed", f"the server counted {tokens} tokens but sent {ids} token ids"
    if exact and tokens > asked:
        return "malformed", f"{tokens} tokens came although {asked} were asked for"
    if exact and tokens < asked:
        if kind == "length":
            return "short", f"ended at its length limit after {tokens} of {asked} tokens"
        if kind == "stop" and sampling.ignore_eos and not (sampling.stop or sampling.stop_token_ids):
            return "short", f"stopped after {tokens} of {asked} tokens although EOS was to be ignored"
    return "ok", None
