"""A real socket server that answers with given bytes at given times, and remembers when it sent what."""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Self

from pytest_ddtree.client.loop import LoopThread

End = Literal["keep", "close", "reset", "hang"]


@dataclass(frozen=True)
class Asked:
    """A request as the server read it."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes
    connection: int

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass(frozen=True)
class Script:
    """Writes as (seconds after the previous one, or what has to happen before, and bytes), then what becomes of the connection."""

    writes: Sequence[tuple[float | threading.Event, bytes]]
    end: End = "keep"


Handler = Callable[[Asked], Script]


def plain(status: int, body: bytes, *, end: End = "keep") -> Script:
    head = f"HTTP/1.1 {status} X\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    return Script([(0.0, head.encode() + body)], end)


def as_json(value: Any, status: int = 200) -> Script:
    return plain(status, json.dumps(value).encode())


HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
LAST_CHUNK = b"0\r\n\r\n"


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


def sse(value: Any) -> bytes:
    return b"data: " + (value if isinstance(value, bytes) else json.dumps(value).encode()) + b"\n\n"


def stream(
    events: Sequence[bytes], *, gap_s: float = 0.0, done: bool = True, last: bool = True, end: End = "keep"
) -> Script:
    """One chunk an event, `gap_s` apart; then [DONE] and the last chunk, unless left out."""
    writes = [(0.0, HEAD)] + [(gap_s, chunk(event)) for event in events]
    if done:
        writes.append((0.0, chunk(b"data: [DONE]\n\n")))
    if last:
        writes.append((0.0, LAST_CHUNK))
    return Script(writes, end)


def generate_events(
    pieces: Sequence[Sequence[int]],
    *,
    finish: dict[str, Any] | None = None,
    prompt_tokens: int = 4,
    incremental: bool = False,
    meta: dict[str, Any] | None = None,
) -> list[bytes]:
    """Events of `/generate` in SGLang's shape; text of token 7 is `t7 `. `finish` None: never finishes."""
    events = []
    ids: list[int] = []
    for index, piece in enumerate(pieces):
        ids += piece
        shown = list(piece) if incremental else list(ids)
        last = index == len(pieces) - 1
        info = {"id": "x", "finish_reason": finish if last else None, "prompt_tokens": prompt_tokens}
        info |= {"completion_tokens": len(ids), "cached_tokens": 0} | (meta or {} if last else {})
        text = "".join(f"t{token} " for token in shown)
        events.append(sse({"text": text, "output_ids": shown, "meta_info": info}))
    return events


@dataclass
class ScriptedServer:
    """Answers each request with what `handler` returns; `asked` and `sent` (ns, bytes) are its log."""

    handler: Handler
    asked: list[Asked] = field(default_factory=list)
    sent: list[tuple[int, int, bytes]] = field(default_factory=list)
    connections: int = 0
    tls: ssl.SSLContext | None = None

    def __enter__(self) -> Self:
        self._loop = LoopThread()
        self._server = self._loop.run(self._listen())
        host, port = self._server.sockets[0].getsockname()[:2]
        self.url = f"{'https' if self.tls else 'http'}://{host}:{port}"
        return self

    def __exit__(self, *error: object) -> None:
        self.stop_listening()
        self._loop.close()

    def stop_listening(self) -> None:
        self._loop.run(self._stop())

    async def _stop(self) -> None:
        self._server.close()

    async def _listen(self) -> asyncio.Server:
        return await asyncio.start_server(self._serve, "127.0.0.1", 0, limit=1 << 24, ssl=self.tls)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        connection = self.connections
        try:
            while await self._exchange(reader, writer, connection):
                pass
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            writer.close()

    async def _exchange(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, connection: int
    ) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        method, path, _ = head[0].split(" ")
        headers = {
            name.lower(): value.strip()
            for name, _, value in (line.partition(":") for line in head[1:] if line)
        }
        body = await reader.readexactly(int(headers.get("content-length", 0)))
        asked = Asked(method, path, headers, body, connection)
        self.asked.append(asked)
        script = self.handler(asked)
        for delay, data in script.writes:
            if isinstance(delay, threading.Event):
                await asyncio.to_thread(delay.wait, 60)
            elif delay:
                await asyncio.sleep(delay)
            self.sent.append((time.perf_counter_ns(), connection, data))
            writer.write(data)
            await writer.drain()
        if script.end == "reset":
            raw: socket.socket = writer.get_extra_info("socket")
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        elif script.end == "hang":
            await reader.read()
        return script.end == "keep"
