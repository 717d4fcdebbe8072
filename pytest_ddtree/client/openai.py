"""OpenAI's completions and chat endpoints: the body of a request, and the record of what came back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import orjson

from pytest_ddtree.client.answers import Tally, broken_off, error_message, excerpt, finished, unfinished
from pytest_ddtree.client.exchange import Exchange
from pytest_ddtree.client.generate import sampling_params
from pytest_ddtree.client.records import Chunk, Outcome, Record, Request, Sampling
from pytest_ddtree.client.sse import split_events

Endpoint = Literal["completions", "chat"]

PATHS: Mapping[Endpoint, str] = {"completions": "/v1/completions", "chat": "/v1/chat/completions"}


def sampling_fields(sampling: Sampling) -> dict[str, Any]:
    """Sampling parameters with OpenAI's names, else SGLang's; what is None or empty is not sent."""
    return sampling_params(sampling, length="max_tokens", seed="seed")


def request_body(request: Request, endpoint: Endpoint, *, model: str, stream: bool) -> bytes:
    """The JSON body of a request; ValueError for a prompt that the endpoint does not take.

    A stream is asked for its token counts with every chunk.
    """
    body = {"model": model, "stream": stream} | sampling_fields(request.sampling)
    if stream:
        body["stream_options"] = {"include_usage": True, "continuous_usage_stats": True}
    if (request.input_ids is None) == (request.text is None):
        raise ValueError(f"request {request.tag!r} needs exactly one of input_ids and text")
    if endpoint == "chat":
        if request.text is None:
            raise ValueError("the chat endpoint takes text, not token ids")
        body["messages"] = [{"role": "user", "content": request.text}]
    else:
        body["prompt"] = request.text if request.input_ids is None else request.input_ids
    if request.rid is not None:
        body["rid"] = request.rid
    return orjson.dumps(body)


def decode(request: Request, exchange: Exchange, *, stream: bool) -> Record:
    """The record of an exchange; never raises, whatever the bytes."""
    answer = _Answer()
    broken = broken_off(exchange)
    if broken is not None:
        return answer.record(request, exchange, b"", broken)
    events = split_events(exchange.body if stream else b"")
    ended: tuple[Outcome, str | None] | None = None
    try:
        if not stream:
            if exchange.fault is not None:
                return answer.record(request, exchange, b"", (exchange.fault, exchange.error))
            value = orjson.loads(exchange.body)
            if "error" in value:
                return answer.record(request, exchange, b"", ("error_event", error_message(value)))
            answer.whole(value, exchange)
            return answer.record(request, exchange, b"")
        data = exchange.body
        for data, end in zip(events.data, events.ends, strict=True):
            if data == b"[DONE]":
                break
            value = orjson.loads(data)
            if "error" in value:
                ended = "error_event", error_message(value)
                break
            answer.part(value, end)
    except (orjson.JSONDecodeError, KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        shown = excerpt(data if stream else exchange.body)
        ended = "malformed", f"{type(error).__name__}: {error} in {shown}"
    answer.settle(exchange)
    return answer.record(request, exchange, events.rest, ended)


class _Answer:
    """An answer while it is put together."""

    def __init__(self) -> None:
        self.tally = Tally()
        self.exact = True
        self.texts: list[str] = []
        self.reasonings: list[str] = []
        self.ids: list[int] = []
        self.reason: dict[str, Any] | None = None
        self.usage: Mapping[str, Any] = {}
        self.extension: Mapping[str, Any] = {}
        self.native: Mapping[str, Any] = {}
        """`meta_info` of the choice, which SGLang sends where `return_meta_info` was asked for."""
        self._silent: list[tuple[int, int]] = []
        """(characters so far, end) of token-bearing events without a count."""
        self._characters = 0

    def part(self, value: Mapping[str, Any], end: int) -> None:
        """One event of a stream."""
        before = self._characters
        ids = self._choice(value)
        usage = _usage(value)
        if usage:
            self.usage = usage
            # A last event without choices repeats the sum: its tokens came before it.
            if value.get("choices"):
                self.tally.count(usage["completion_tokens"], end)
        elif ids:
            self.tally.count(len(self.ids), end)
        elif self._characters > before:
            self._silent.append((self._characters, end))

    def whole(self, value: Mapping[str, Any], exchange: Exchange) -> None:
        """An answer that was not streamed."""
        self._choice(value)
        self.usage = _usage(value)
        tokens = self.usage.get("completion_tokens", len(self.ids))
        self.exact = bool(self.usage or self.ids)
        if tokens:
            self.tally = Tally((Chunk(exchange.end_ns, tokens),))

    def settle(self, exchange: Exchange) -> None:
        """Give chunks without a count an estimate: a share of the sum by characters, else one token each."""
        if self._silent:
            self.exact = False
            total = self.usage.get("completion_tokens", 0)
            estimates = [
                max(1, round(total * characters / self._characters)) if total else index
                for index, (characters, _) in enumerate(self._silent, 1)
            ]
            counted = list(zip(self.tally.ends, self.tally.counts, strict=True))
            estimated = [(end, tokens) for (_, end), tokens in zip(self._silent, estimates, strict=True)]
            self.tally = Tally()
            for end, tokens in sorted(counted + estimated):
                self.tally.count(tokens, end)
        self.tally.stamp(exchange)

    def record(
        self,
        request: Request,
        exchange: Exchange,
        rest: bytes,
        ended: tuple[Outcome, str | None] | None = None,
    ) -> Record:
        tokens = self.usage.get("completion_tokens", self.tally.tokens)
        if ended is None:
            if self.reason is None:
                ended = unfinished(exchange, rest, tokens)
            else:
                ended = finished(request, self.reason["type"], tokens, exact=self.exact)
        return Record(
            request=request,
            outcome=ended[0],
            error=ended[1],
            sent_ns=exchange.sent_ns,
            end_ns=exchange.end_ns,
            output_ids=tuple(self.ids),
            text="".join(self.texts),
            reasoning="".join(self.reasonings) if self.reasonings else None,
            chunks=self.tally.chunks,
            exact_counts=self.exact,
            finish_reason=self.reason,
            meta=self._meta(),
            http_status=exchange.status,
            coalesced=self.tally.coalesced,
        )

    def _choice(self, value: Mapping[str, Any]) -> Sequence[int]:
        """Take text, reasoning and finish reason of the (only) choice; returns its token ids, where sent."""
        if isinstance(value.get("sglext"), Mapping):
            self.extension = value["sglext"]
        choices = value.get("choices")
        if not choices:
            return ()
        choice = choices[0]
        if isinstance(choice.get("meta_info"), Mapping):
            self.native = choice["meta_info"]
        said = choice.get("delta") or choice.get("message") or choice
        text = said.get("content") or said.get("text") or ""
        thought = said.get("reasoning_content") or said.get("reasoning") or ""
        if not (isinstance(text, str) and isinstance(thought, str)):
            raise TypeError("the text of a choice is none")
        if text:
            self.texts.append(text)
        if thought:
            self.reasonings.append(thought)
        self._characters += len(text) + len(thought)
        for call in said.get("tool_calls") or ():
            self._characters += len((call.get("function") or {}).get("arguments") or "")
        if choice.get("finish_reason"):
            self.reason = {"type": choice["finish_reason"]}
            if choice.get("matched_stop") is not None:
                self.reason["matched"] = choice["matched_stop"]
        ids = choice.get("token_ids") or ()
        self.ids += ids
        return ids

    def _meta(self) -> Mapping[str, Any]:
        """The usage as sent, with the counts that SGLang nests brought to where records look for them."""
        meta = {**self.native, **self.usage}
        for name, outer in (
            ("cached_tokens", "prompt_tokens_details"),
            ("reasoning_tokens", "completion_tokens_details"),
        ):
            details = meta.get(outer)
            inner = details.get(name) if isinstance(details, Mapping) else None
            if inner is not None:
                meta.setdefault(name, inner)
        spec = self.extension.get("spec_tokens_details")
        if isinstance(spec, list) and spec:
            spec = spec[0]
        if isinstance(spec, Mapping):
            meta = {**spec, **meta}
        return meta


def _usage(value: Mapping[str, Any]) -> Mapping[str, Any]:
    """The usage of an event, with a number of tokens; empty where it has none. Raises TypeError for what is no usage."""
    usage = value.get("usage")
    if not usage:
        return {}
    if not isinstance(usage, Mapping) or not isinstance(usage.get("completion_tokens"), int):
        raise TypeError(f"a usage without a number of completion_tokens: {str(usage)[:80]}")
    return usage
