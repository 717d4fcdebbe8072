"""Faults of the service around the model: counting, streaming, crashing, being slow, and noise that is none."""

from __future__ import annotations

import time
import zlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ..request import Request, Update
from ..runtime import Runtime
from .base import Fault

_BUSY = bytes(32 * 1024)


class PlantedCrash(RuntimeError):
    """Raised by a fault that takes the engine down."""


class ChunkLost(Fault):
    """A streamed chunk's tokens never arrive; the counts go on."""

    name = "chunk_lost"
    imitates = "collapsed or dropped messages between scheduler and detokenizer"
    takes = "every Nth update"
    default = 5

    def updates(self, updates: list[Update], request: Request) -> list[Update]:
        return [
            replace(update, tokens=()) if update.finish is None and self._due(request) else update
            for update in updates
        ]

    def _due(self, request: Request) -> bool:
        return len(request.output) % max(self.number, 1) == 0 and self.fires()


class ChunkRepeated(Fault):
    """A streamed chunk's tokens arrive twice."""

    name = "chunk_repeated"
    imitates = "vLLM and SGLang reports of text repeated in streams while the usage is right"
    takes = "every Nth update"
    default = 5

    def updates(self, updates: list[Update], request: Request) -> list[Update]:
        wrong: list[Update] = []
        for update in updates:
            due = update.finish is None and len(request.output) % max(self.number, 1) == 0
            if due and update.tokens and self.fires():
                wrong.append(replace(update, tokens=update.tokens * 2))
            else:
                wrong.append(update)
        return wrong


class CacheLeaks(Fault):
    """N pages of the cache are lost with every request that ends."""

    name = "cache_leaks"
    imitates = "SGLang #14180 and its own idle check: token_to_kv_pool_allocator memory leak detected"
    takes = "N"
    default = 1

    def finished(self, runtime: Runtime, request: Request) -> None:
        if self.fires():
            pages = runtime.memory.pages
            pages.allocate(min(self.number, pages.free_pages))


class UsageOffByOne(Fault):
    """completion_tokens is one too many."""

    name = "usage_off_by_one"
    imitates = "SGLang #39826/#37450: token counts of usage do not agree with the tokens"

    def updates(self, updates: list[Update], request: Request) -> list[Update]:
        return [
            replace(update, completion_tokens=update.completion_tokens + 1)
            if update.finish is not None and self.fires()
            else update
            for update in updates
        ]


class AcceptOverReported(Fault):
    """Too few verify steps are reported, so that the accept length looks N tenths higher."""

    name = "accept_over_reported"
    imitates = (
        "SGLang #16694, vLLM #42508: reported accept lengths do not match the steps; simulated acceptance"
    )
    takes = "tenths"
    default = 5

    def updates(self, updates: list[Update], request: Request) -> list[Update]:
        return [
            replace(update, verify_steps=max(1, round(update.verify_steps / (1 + self.number / 10))))
            if update.verify_steps and self.fires()
            else update
            for update in updates
        ]


class CachedOverReported(Fault):
    """cached_tokens claims the whole prompt."""

    name = "cached_over_reported"
    imitates = "SGLang #20451: cached_tokens is wrong under speculation"

    def updates(self, updates: list[Update], request: Request) -> list[Update]:
        return [
            replace(update, cached_tokens=len(request.prompt) + 1) if self.fires() else update
            for update in updates
        ]


class CrashBeyondBlock(Fault):
    """The server dies at start when the budget exceeds the block."""

    name = "crash_beyond_block"
    imitates = "SGLang #34189, #32666: draft sizes beyond a hard-coded limit end in an illegal access"

    def started(self, runtime: Runtime) -> None:
        draft = runtime.draft
        if draft is not None and draft.settings.nodes > draft.horizon:
            raise PlantedCrash("planted crash: the tree is larger than the block")


class CrashAfter(Fault):
    """The server dies while it serves its Nth request."""

    name = "crash_after"
    imitates = "SGLang #13826/#14180: out of memory and retraction errors after a while"
    takes = "N"
    default = 20

    def passed(self, runtime: Runtime, requests: Sequence[Request], seconds: float) -> None:
        if any(request.number >= self.number for request in requests):
            raise PlantedCrash("planted crash: enough requests were served")


class HangMidStream(Fault):
    """The server stops answering in the middle of its Nth request."""

    name = "hang_mid_stream"
    imitates = "SGLang #22779, #36140: the server hangs after some requests while /health was fine"
    takes = "N"
    default = 10

    def passed(self, runtime: Runtime, requests: Sequence[Request], seconds: float) -> None:
        while any(request.number >= self.number and len(request.output) > 8 for request in requests):
            time.sleep(0.5)


class ErrorInStream(Fault):
    """An error event comes in the middle of a stream that began with 200."""

    name = "error_in_stream"
    imitates = "SGLang: errors after the headers arrive as an event inside a 200 stream"
    takes = "at chunk N"
    default = 3

    def event(self, payload: dict[str, Any], number: int) -> dict[str, Any]:
        if number == self.number and self.fires():
            return {"error": {"message": "planted error inside the stream"}}
        return payload


class Slower(Fault):
    """Every decode pass takes N percent longer."""

    name = "slower"
    imitates = "an eager fall-back or a lost kernel: same answers, less speed"
    takes = "percent"
    default = 10

    def passed(self, runtime: Runtime, requests: Sequence[Request], seconds: float) -> None:
        deadline = time.perf_counter() + seconds * self.number / 100
        while time.perf_counter() < deadline:
            # Work of some microseconds without the interpreter's lock, as a pass is. A sleep, even one of no time, gives the core
            # away and overshoots: 3 % of a pass of a few milliseconds became 5 %, and on a busy machine any length.
            zlib.crc32(_BUSY)


class RoundingNoise(Fault):
    """Not a fault: bfloat16 arithmetic as on a GPU. It must raise no alarm."""

    name = "rounding_noise"
    imitates = "healthy bf16 servers: 40 to 70 % of the prompts diverge, largest gaps about 0.4 nats"

    def numerics(self, name: str) -> str:
        return "bf16"
