"""Server-sent events over plain ASGI, with the client's departure noticed at once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from typing import Any

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

DONE = b"data: [DONE]\n\n"


class EventStream(Response):
    """Sends every item of ``events`` as a body part; ``gone`` runs when they fail or the client leaves before the end."""

    media_type = "text/event-stream"

    def __init__(self, events: AsyncIterator[bytes], gone: Callable[[], None]) -> None:
        super().__init__(b"")
        del self.headers["content-length"]
        self.headers["content-type"] = "text/event-stream; charset=utf-8"
        self._events = events
        self._gone = gone

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        watcher = asyncio.ensure_future(_wait_for_departure(receive))
        sender = asyncio.ensure_future(self._send_all(send))
        try:
            await asyncio.wait({watcher, sender}, return_when=asyncio.FIRST_COMPLETED)
            if sender.done():
                sender.result()
        finally:
            finished = _succeeded(sender)
            for task in (watcher, sender):
                if not task.done():
                    task.cancel()
                    with suppress(asyncio.CancelledError):
                        await task
            if not finished:
                self._gone()

    async def _send_all(self, send: Send) -> None:
        async for event in self._events:
            await send({"type": "http.response.body", "body": event, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _wait_for_departure(receive: Receive) -> None:
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return


def _succeeded(task: asyncio.Future[Any]) -> bool:
    return task.done() and not task.cancelled() and task.exception() is None


async def unless_gone(request: Request, work: Awaitable[Response], gone: Callable[[], None]) -> Response:
    """Await ``work``; ``gone`` runs when it fails, and when the client leaves first, which ends it.

    Raises:
        ClientDisconnect: the client left. Else what ``work`` raises.
    """
    watcher = asyncio.ensure_future(_wait_for_departure(request.receive))
    worker = asyncio.ensure_future(work)
    try:
        await asyncio.wait({watcher, worker}, return_when=asyncio.FIRST_COMPLETED)
        if worker.done():
            return worker.result()
        raise ClientDisconnect
    finally:
        finished = _succeeded(worker)
        for task in (watcher, worker):
            if not task.done():
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task
        if not finished:
            gone()
