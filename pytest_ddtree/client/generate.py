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
from pytest_ddtree.client.sse import Event, split_events

PATH = "/generate"
_DONE = b"[DONE]"
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
    except (orjson.JSONDecodeError, KeyError, TypeError, ValueError, AttributeError) as error:
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
    events, rest = split_events(exchange.body)
    answer = _Answer()
    ended = None if answer.skim(events) else answer.read(events)
    answer.tally.stamp(exchange)
    return answer.record(request, exchange, rest, ended)


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

    def skim(self, events: Sequence[Event]) -> bool:
        """Take a cumulative stream: its last event repeats all, the others only have to give their counts.

        Decoding each of them would cost a time that grows with the square of the answer. Returns False, with
        nothing taken, when the stream is not plainly one of these.
        """
        events = events[:-1] if events and events[-1][0] == _DONE else events
        if len(events) < 2:
            return False
        try:
            before, last = orjson.loads(events[-2][0]), orjson.loads(events[-1][0])
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
        counts = [_COUNT.search(data, max(0, data.rfind(_COUNTED))) for data, _ in events]
        if not all(counts) or any(b'"error"' in data for data, _ in events):
            return False
        for found, (_, end) in zip(counts, events, strict=True):
            assert found is not None
            self.tally.count(int(found[1]), end)
        self.text, self.ids, self.meta = text, tuple(ids), meta
        return True

    def read(self, events: Sequence[Event]) -> tuple[Outcome, str | None] | None:
        """Take any stream, event by event; returns how it ended if that was no finish reason."""
        texts: list[str] = []
        parts: list[list[int]] = []
        counts: list[int] = []
        ended: tuple[Outcome, str | None] | None = None
        for data, end in events:
            if data == _DONE:
                break
            try:
                value = orjson.loads(data)
                if "error" in value:
                    ended = "error_event", error_message(value)
                    break
                self.meta = value["meta_info"]
                tokens = int(self.meta["completion_tokens"])
                text, ids = value.get("text"), value.get("output_ids")
            except (orjson.JSONDecodeError, KeyError, TypeError, ValueError, AttributeError) as error:
                ended = "malformed", f"{type(error).__name__}: {error} in the event {excerpt(data)}"
                break
            self.tally.count(tokens, end)
            counts.append(tokens)
            texts.append(text or "")
            if ids is not None:
                parts.append(ids)
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
        ended: tuple[Outcome, str | None] | None = None,
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
