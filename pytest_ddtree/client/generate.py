"""SGLang's `/generate`: the body of a request, and the record of what came back."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import chain, pairwise
from typing import Any

import orjson

from pytest_ddtree.client.answers import Tally, broken_off, error_message, excerpt, finished, unfinished
from pytest_ddtree.client.exchange import Exchange
from pytest_ddtree.client.records import Chunk, Outcome, Record, Request, Sampling
from pytest_ddtree.client.sse import split_events

PATH = "/generate"
_DONE = b"[DONE]"
_UNUSABLE = (orjson.JSONDecodeError, KeyError, TypeError, ValueError, AttributeError)
"""What comes of an answer that is not of the shape it should have."""
# Inside a JSON string the quotes would be escaped, so this is found only as a key.
_COUNTED = b'"completion_tokens":'
_COUNT = re.compile(rb'"completion_tokens": ?(\d+)')


def sampling_params(
    sampling: Sampling, *, length: str = "max_new_tokens", seed: str = "sampling_seed"
) -> dict[str, Any]:
    """`sampling_params` of SGLang; what is None or empty is not sent.

    `length` and `seed` are the two names in which the OpenAI endpoints differ.
    """
    optional = {
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "min_p": sampling.min_p,
        seed: sampling.seed,
        "stop": list(sampling.stop) or None,
        "stop_token_ids": list(sampling.stop_token_ids) or None,
        "ignore_eos": sampling.ignore_eos or None,
    }
    params: dict[str, Any] = {length: sampling.max_new_tokens, "temperature": sampling.temperature}
    params |= {name: value for name, value in optional.items() if value is not None}
    return params | dict(sampling.extra)


def request_body(request: Request, *, stream: bool, extra: Mapping[str, Any] | None = None) -> bytes:
    """The JSON body of a request; raises ValueError unless it has exactly one of input_ids and text."""
    body: dict[str, Any] = {"sampling_params": sampling_params(request.sampling), "stream": stream}
    if (request.input_ids is None) == (request.text is None):
        raise ValueError(f"request {request.tag!r} needs exactly one of input_ids and text")
    if request.input_ids is not None:
        body["input_ids"] = request.input_ids
    else:
        body["text"] = request.text
    if request.rid is not None:
        body["rid"] = request.rid
    return orjson.dumps(body | dict(extra or {}), option=orjson.OPT_SERIALIZE_NUMPY)


def decode(request: Request, exchange: Exchange, *, stream: bool) -> Record:
    """The record of an exchange; never raises, whatever the bytes."""
    broken = broken_off(exchange)
    if broken is not None:
        return _record(request, exchange, broken)
    try:
        return _decode_stream(request, exchange) if stream else _decode_whole(request, exchange)
    except _UNUSABLE as error:
        why = f"{type(error).__name__}: {error} in the answer {excerpt(exchange.body)}"
        return _record(request, exchange, ("malformed", why))


def _decode_whole(request: Request, exchange: Exchange) -> Record:
    if exchange.fault is not None:
        return _record(request, exchange, (exchange.fault, exchange.error or exchange.fault))
    value = orjson.loads(exchange.body)
    if "error" in value:
        return _record(request, exchange, ("error_event", error_message(value)))
    meta = value["meta_info"]
    tokens = int(meta["completion_tokens"])
    ids = value.get("output_ids")
    chunks = (Chunk(exchange.end_ns, tokens),) if tokens else ()
    answer = _Answer(
        text=value.get("text") or "", ids=None if ids is None else tuple(ids), chunks=chunks, meta=meta
    )
    return answer.record(request, exchange, b"")


def _decode_stream(request: Request, exchange: Exchange) -> Record:
    events = split_events(exchange.body)
    data = events.data[: events.data.index(_DONE)] if _DONE in events.data else events.data
    answer = _Answer()
    ended = None if answer.skim(data, events.ends) else answer.read(data, events.ends)
    answer.tally.stamp(exchange)
    return answer.record(request, exchange, events.rest, ended)


Ended = tuple[Outcome, str | None]
_Columns = tuple[list[int], list[str], list[list[int]], Mapping[str, Any]]
"""Token count, text and ids of each event (ids only of those that have any), and the last one's meta."""


def _columns(values: Sequence[Mapping[str, Any]]) -> _Columns:
    metas = [value["meta_info"] for value in values]
    counts = [int(meta["completion_tokens"]) for meta in metas]
    texts = [value.get("text") or "" for value in values]
    parts = [ids for value in values if (ids := value.get("output_ids")) is not None]
    return counts, texts, parts, metas[-1] if metas else {}


def _read(events: Sequence[bytes]) -> tuple[_Columns, Ended | None]:
    """The events up to the first that is no good, and how the stream ended if it was by that one.

    As long as all are good they are decoded as one array, which takes two thirds of the time.
    """
    together = b"[%s]" % b",".join(events)
    try:
        # A quoted word that is no key makes this slower, no more.
        if b'"error"' not in together and len(values := orjson.loads(together)) == len(events):
            return _columns(values), None
    except _UNUSABLE:
        pass
    values = []
    for data in events:
        try:
            value = orjson.loads(data)
            if "error" in value:
                return _columns(values), ("error_event", error_message(value))
            _columns((value,))
        except _UNUSABLE as error:
            why = f"{type(error).__name__}: {error} in the event {excerpt(data)}"
            return _columns(values), ("malformed", why)
        values.append(value)
    return _columns(values), None


class _Answer:
    """An answer while it is put together from its events."""

    __slots__ = ("ids", "meta", "tally", "text")

    def __init__(
        self,
        *,
        text: str = "",
        ids: tuple[int, ...] | None = (),
        chunks: tuple[Chunk, ...] = (),
        meta: Mapping[str, Any] | None = None,
    ) -> None:
        self.text = text
        self.ids = ids
        self.tally = Tally(chunks)
        self.meta: Mapping[str, Any] = meta or {}

    def skim(self, events: Sequence[bytes], ends: Sequence[int]) -> bool:
        """Take a cumulative stream: its last event repeats all, the others only have to give their counts.

        Decoding each of them would cost a time that grows with the square of the answer. Returns False, with
        nothing taken, when the stream is not plainly one of these.
        """
        if len(events) < 2:
            return False
        try:
            before, last = orjson.loads(events[-2]), orjson.loads(events[-1])
            ids, meta = last["output_ids"], last["meta_info"]
            if not len(before["output_ids"]) == before["meta_info"]["completion_tokens"] <= len(ids):
                return False
            if (
                len(ids) != meta["completion_tokens"]
                or ids[: len(before["output_ids"])] != before["output_ids"]
            ):
                return False
            text = last["text"]
        except (orjson.JSONDecodeError, KeyError, TypeError):
            return False
        counts = [_COUNT.search(data, max(0, data.rfind(_COUNTED))) for data in events]
        if not all(counts) or any(b'"error"' in data for data in events):
            return False
        self.tally.count_all([int(found[1]) for found in counts if found], ends[: len(events)])
        self.text, self.ids, self.meta = text, tuple(ids), meta
        return True

    def read(self, events: Sequence[bytes], ends: Sequence[int]) -> Ended | None:
        """Take any stream; returns how it ended if that was no finish reason."""
        (counts, texts, parts, self.meta), ended = _read(events)
        self.tally.count_all(counts, ends[: len(counts)])
        self._join(texts, parts, counts)
        return ended

    def _join(self, texts: list[str], parts: list[list[int]], counts: list[int]) -> None:
        """Text and ids of all events: cumulative if every event repeats what came before, else parts."""
        if not counts:
            return
        if len(parts) < len(counts):
            self.ids = None
            cumulative = all(later.startswith(earlier) for earlier, later in pairwise(texts))
        else:
            lengths = [len(part) for part in parts]
            cumulative = lengths == counts or sum(lengths) not in (counts[-1], counts[-1] - 1)
            self.ids = tuple(parts[-1]) if cumulative else tuple(chain.from_iterable(parts))
        self.text = texts[-1] if cumulative else "".join(texts)

    def record(
        self,
        request: Request,
        exchange: Exchange,
        rest: bytes,
        ended: Ended | None = None,
    ) -> Record:
        reason = self.meta.get("finish_reason")
        if isinstance(reason, str):
            reason = {"type": reason}
        if ended is not None:
            pass
        elif reason is None:
            ended = unfinished(exchange, rest, self.tally.tokens)
        else:
            ids = None if self.ids is None else len(self.ids)
            ended = finished(
                request, reason["type"], self.tally.tokens, ids=ids, message=str(reason.get("message") or "")
            )
        return Record(
            request=request,
            outcome=ended[0],
            error=ended[1],
            sent_ns=exchange.sent_ns,
            end_ns=exchange.end_ns,
            output_ids=self.ids or (),
            text=self.text,
            chunks=self.tally.chunks,
            finish_reason=reason,
            meta=self.meta,
            http_status=exchange.status,
            coalesced=self.tally.coalesced,
        )


def _record(request: Request, exchange: Exchange, ended: tuple[Outcome, str]) -> Record:
    return _Answer().record(request, exchange, b"", ended)
