"""POST /generate."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import orjson
from starlette.requests import Request
from starlette.responses import Response

from ..request import Update
from ..stops import Finish
from .answer import Answer
from .bridge import Channel
from .errors import RequestError, generate_error, json_response, read_json
from .generate_input import GenerateInput, Generation, parse_generate
from .service import Service
from .sse import DONE, EventStream, unless_gone

log = logging.getLogger("ddtree.reference")


class Running:
    """One submitted generation: its channel and its answer."""

    def __init__(self, service: Service, generation: Generation, *, stream: bool, received_at: float) -> None:
        interval = service.args.stream_interval if stream else 0
        self.index = generation.index
        self.rid, self.channel = service.submit(
            generation.input_ids,
            generation.params,
            rid=generation.rid,
            every=interval,
            logprobs=generation.logprobs,
            index=generation.sample,
        )
        self.answer = Answer(
            self.rid,
            len(generation.input_ids),
            generation.params,
            service.tokenizer,
            service.settings.speculative,
            incremental=stream and service.args.incremental_streaming_output,
            hooks=service.engine.runtime.hooks,
            with_logprobs=generation.logprobs is not None,
            text_in_logprobs=generation.text_in_logprobs,
            received_at=received_at,
        )


async def generate(request: Request) -> Response:
    service: Service = request.app.state.service
    received_at = time.time()
    try:
        parsed = parse_generate(await read_json(request), service)
    except RequestError as error:
        log.error("[http_server] Error: %s", error.message)
        return generate_error(error)
    running = [
        Running(service, generation, stream=parsed.stream, received_at=received_at)
        for generation in parsed.generations
    ]

    def gone() -> None:
        for one in running:
            one.channel.leave()

    if parsed.stream:
        events = _stream_one(running[0]) if parsed.single else _stream_many(running)
        return EventStream(events, gone)
    return await unless_gone(request, _collect(running, parsed, gone), gone)


async def _collect(running: list[Running], parsed: GenerateInput, abandon: Callable[[], None]) -> Response:
    """The answers of all; when one of them failed the others are given up."""
    try:
        answers = [await _finished(one) for one in running]
    except RequestError as error:
        abandon()
        return generate_error(error)
    return json_response(answers[0] if parsed.single else answers)


async def _finished(one: Running) -> dict[str, Any]:
    """The whole answer.

    Raises:
        RequestError: the engine ended the request with an error status.
    """
    while True:
        update = await one.channel.next()
        raise_for_status(update.finish)
        payload = one.answer.payload(update)
        if update.finish is not None:
            return payload


def raise_for_status(finish: Finish | None) -> None:
    if finish is not None and finish.status_code is not None:
        raise RequestError(finish.message, finish.status_code)


async def _stream_one(one: Running) -> AsyncIterator[bytes]:
    while True:
        update = await one.channel.next()
        yield event(one.answer.payload(update))
        if update.finish is not None:
            yield DONE
            return


async def _stream_many(running: list[Running]) -> AsyncIterator[bytes]:
    """Chunks of all generations as they come, each with its index."""
    queue: asyncio.Queue[tuple[Running, Update]] = asyncio.Queue()

    async def forward(one: Running, channel: Channel) -> None:
        while True:
            update = await channel.next()
            queue.put_nowait((one, update))
            if update.finish is not None:
                return

    tasks = [asyncio.ensure_future(forward(one, one.channel)) for one in running]
    try:
        left = len(running)
        while left:
            one, update = await queue.get()
            yield event(one.answer.payload(update) | {"index": one.index})
            left -= update.finish is not None
        yield DONE
    finally:
        for task in tasks:
            task.cancel()


def event(data: object) -> bytes:
    return b"data: " + orjson.dumps(data) + b"\n\n"
