"""POST /v1/completions and /v1/chat/completions."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from ..reasoning import Piece
from ..request import LogprobOptions, Update
from .bridge import Channel
from .errors import RequestError, json_response, openai_error, openai_error_body, read_json
from .generate import event, raise_for_status
from .openai_answer import Choice, Envelope
from .openai_input import OpenAIInput, parse_chat, parse_completion
from .service import Service
from .sse import DONE, EventStream, unless_gone

log = logging.getLogger("ddtree.reference")


async def completions(request: Request) -> Response:
    return await _answer(request, chat=False)


async def chat_completions(request: Request) -> Response:
    return await _answer(request, chat=True)


async def _answer(request: Request, *, chat: bool) -> Response:
    service: Service = request.app.state.service
    try:
        body = await read_json(request)
        parsed = parse_chat(body, service, service.chat_template) if chat else parse_completion(body, service)
    except RequestError as error:
        log.error("[http_server] Error: %s", error.message)
        return openai_error(error)
    work = Work(service, parsed, chat=chat)
    if parsed.stream:
        return EventStream(work.stream(), work.abort)
    return await unless_gone(request, work.collect(), work.abort)


class Work:
    """All choices of one request."""

    def __init__(self, service: Service, parsed: OpenAIInput, *, chat: bool) -> None:
        self._parsed = parsed
        self._chat = chat
        self._envelope = Envelope(
            "chat.completion" if chat else "text_completion",
            service.model_name,
            service.settings,
            cache_report=service.args.enable_cache_report,
        )
        self._choices: list[Choice] = []
        self._channels: list[Channel] = []
        for ids in parsed.prompts:
            for sample in range(parsed.params.n):
                number = len(self._choices)
                options = None
                if parsed.top_logprobs is not None:
                    start = len(ids) - 1 if parsed.echo is None else 0
                    options = LogprobOptions(start, parsed.top_logprobs)
                _, channel = service.submit(
                    ids,
                    parsed.params,
                    rid=None
                    if parsed.rid is None
                    else (parsed.rid if number == 0 else f"{parsed.rid}_{number}"),
                    every=service.args.stream_interval if parsed.stream else 0,
                    logprobs=options,
                    index=sample,
                )
                self._choices.append(Choice(number, len(ids), parsed, service.tokenizer))
                self._channels.append(channel)

    def abort(self) -> None:
        for channel in self._channels:
            channel.leave()

    def _echo(self, choice: Choice) -> str:
        """What the choice's text begins with besides the answer."""
        texts = self._parsed.echo
        return "" if texts is None else texts[choice.index // self._parsed.params.n]

    def _usage(self) -> dict[str, Any]:
        return self._envelope.usage(self._choices, len(self._parsed.prompts))

    async def collect(self) -> Response:
        try:
            for choice, channel in zip(self._choices, self._channels, strict=True):
                while choice.finish is None:
                    update = await channel.next()
                    raise_for_status(update.finish)
                    choice.push(update)
        except RequestError as error:
            self.abort()
            return openai_error(error)
        choices = [self._whole(choice) for choice in self._choices]
        return json_response(self._envelope.wrap(choices, self._usage(), chunk=False))

    def _whole(self, choice: Choice) -> dict[str, Any]:
        wants = self._parsed.top_logprobs is not None
        data: dict[str, Any] = {"index": choice.index}
        if self._chat:
            data["message"] = {
                "role": "assistant",
                "content": choice.content,
                "reasoning_content": choice.reasoning if self._parsed.parser is not None else None,
                "tool_calls": None,
            }
            data["logprobs"] = choice.chat_logprobs(choice.logprobs) if wants else None
        else:
            data["text"] = self._echo(choice) + choice.content
            data["logprobs"] = choice.completion_logprobs(choice.logprobs) if wants else None
        data |= choice.ending()
        if self._parsed.return_meta_info:
            data["meta_info"] = self._envelope.meta_info(choice)
        return data

    async def stream(self) -> AsyncIterator[bytes]:
        if self._chat:
            for choice in self._choices:
                delta = {"role": "assistant", "content": "", "reasoning_content": None, "tool_calls": None}
                yield self._chunk(choice, delta, None, last=False)
        async for choice, update in self._updates():
            if update.finish is not None and update.finish.status_code is not None:
                error = RequestError(update.finish.message, update.finish.status_code)
                yield event({"error": openai_error_body(error)})
                continue
            opening = choice.last is None
            piece = choice.push(update)
            for data in self._chunks(choice, piece, opening=opening):
                yield data
        if self._parsed.include_usage:
            yield event(self._envelope.wrap([], self._usage(), chunk=True))
        yield DONE

    def _chunks(self, choice: Choice, piece: Piece, *, opening: bool) -> list[bytes]:
        """Chunks of one update: thinking, answer, and an empty one that closes a chat choice or has nothing to show yet."""
        logprobs = self._logprobs(choice)
        last = choice.finish is not None
        if not self._chat:
            text = (self._echo(choice) if opening else "") + piece.content
            return [self._chunk(choice, text, logprobs, last=last)] if text or last or logprobs else []
        chunks: list[bytes] = []
        empty = {"role": None, "content": None, "reasoning_content": None, "tool_calls": None}
        if piece.reasoning:
            chunks.append(
                self._chunk(choice, empty | {"reasoning_content": piece.reasoning}, logprobs, last=False)
            )
            logprobs = None
        if piece.content:
            chunks.append(self._chunk(choice, empty | {"content": piece.content}, logprobs, last=False))
            logprobs = None
        if last or (logprobs is not None and not chunks):
            # Tokens whose text is held back have their log-probabilities now.
            chunks.append(self._chunk(choice, empty, logprobs, last=last))
        return chunks

    def _logprobs(self, choice: Choice) -> dict[str, Any] | None:
        if self._parsed.top_logprobs is None:
            return None
        fresh = choice.fresh_logprobs
        return choice.chat_logprobs(fresh) if self._chat else choice.completion_logprobs(fresh)

    def _chunk(
        self, choice: Choice, content: str | dict[str, Any], logprobs: dict[str, Any] | None, *, last: bool
    ) -> bytes:
        data: dict[str, Any] = {"index": choice.index, "delta" if self._chat else "text": content}
        data["logprobs"] = logprobs
        data |= choice.ending() if last else {"finish_reason": None, "matched_stop": None}
        usage = self._usage() if self._parsed.continuous_usage else None
        return event(self._envelope.wrap([data], usage, chunk=True))

    async def _updates(self) -> AsyncIterator[tuple[Choice, Update]]:
        """Updates of all choices as they come, until every one has ended."""
        if len(self._choices) == 1:
            while True:
                update = await self._channels[0].next()
                yield self._choices[0], update
                if update.finish is not None:
                    return
        queue: asyncio.Queue[tuple[Choice, Update]] = asyncio.Queue()

        async def forward(choice: Choice, channel: Channel) -> None:
            while True:
                update = await channel.next()
                queue.put_nowait((choice, update))
                if update.finish is not None:
                    return

        tasks = [
            asyncio.ensure_future(forward(choice, channel))
            for choice, channel in zip(self._choices, self._channels, strict=True)
        ]
        try:
            left = len(tasks)
            while left:
                choice, update = await queue.get()
                left -= update.finish is not None
                yield choice, update
        finally:
            for task in tasks:
                task.cancel()
