"""Which requests run: a first-come queue, admission by free memory, chunked prompts, retraction under pressure."""

from __future__ import annotations

import time
from collections import deque

from .allocator import OutOfPages
from .prefill import Piece
from .request import Request
from .runtime import Runtime
from .stops import Finish

ADMISSION_RESERVE = 64
"""Answer tokens for which room must be left when a request is admitted, if it may generate as many."""


class Scheduler:
    """The waiting queue, the requests whose prompt is in progress, and the running ones.

    Other threads count these lists. So a request enters its next list before it leaves the last one, and leaves all only
    when its memory is free: whoever sees an idle server sees its memory whole.
    """

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self.waiting: deque[Request] = deque()
        self.filling: list[Request] = []
        self.running: list[Request] = []
        self.retracted = 0

    @property
    def idle(self) -> bool:
        return not (self.waiting or self.filling or self.running)

    def submit(self, request: Request) -> None:
        """Queue a request, or finish it at once when the queue is full."""
        limit = self._runtime.settings.max_queued_requests
        if limit is not None and len(self.waiting) >= limit:
            request.finish = Finish("abort", message="The request queue is full.", status_code=503)
            request.report(self._runtime.hooks)
            return
        self.waiting.append(request)

    def next_pieces(self) -> list[Piece]:
        """Pieces of prompts for one pass, at most ``chunked_prefill_size`` tokens together; admits what fits."""
        room = self._runtime.settings.chunked_prefill_size
        pieces: list[Piece] = []
        for request in self.filling:
            if room <= 0:
                return pieces
            room -= self._add_piece(pieces, request, room)
        limit = self._runtime.settings.max_running_requests
        while room > 0 and self.waiting and len(self.running) + len(self.filling) < limit:
            request = self.waiting[0]
            if not self._admit(request):
                break
            self.filling.append(request)
            self.waiting.popleft()
            room -= self._add_piece(pieces, request, room)
        return pieces

    def _add_piece(self, pieces: list[Piece], request: Request, room: int) -> int:
        begin = request.kv_length
        end = min(request.fill_length(), begin + room)
        if end > begin:
            pieces.append(Piece(request, begin, end))
        return end - begin

    def _admit(self, request: Request) -> bool:
        """Take memory for the request's prompt and a little more; False when it has to wait."""
        memory = self._runtime.memory
        fill = request.fill_length()
        tokens = request.tokens(0, fill)
        limit = fill if request.output else fill - 1
        if request.submission.logprobs is not None and not request.output:
            limit = min(limit, request.submission.logprobs.start)
        holding = memory.attach(tokens, limit)
        reserve = min(request.params.max_new_tokens - len(request.output), ADMISSION_RESERVE)
        needed = fill - holding.shared + reserve + self._runtime.step_slots
        crowd = sum(self._headroom(other) for other in self.running)
        others = bool(self.running or self.filling)
        try:
            if needed + crowd > memory.available and others:
                raise OutOfPages
            memory.ensure(holding, fill)
        except OutOfPages:
            memory.cache.unlock(holding.node)
            if not others:
                request.finish = Finish(
                    "abort", message="The request needs more memory than the server has.", status_code=400
                )
                self.waiting.popleft()
                request.report(self._runtime.hooks)
            return False
        request.holding = holding
        request.kv_length = holding.shared
        self._runtime.hooks.admitted(self._runtime, request)
        if request.admitted_at is None:
            request.admitted_at = time.perf_counter()
            request.cached_tokens = holding.shared
        return True

    def _headroom(self, request: Request) -> int:
        """Slots a running request will want soon."""
        remaining = min(request.params.max_new_tokens - len(request.output), ADMISSION_RESERVE)
        return max(
            0, request.kv_length + remaining + self._runtime.step_slots - request.table().table.capacity
        )

    def filled(self) -> list[Request]:
        """Requests whose prompt is complete now; they move to the running ones, finished or not."""
        ready = [
            request
            for request in self.filling
            if request.kv_length >= request.fill_length() or request.finish
        ]
        if ready:
            self.running.extend(ready)
            self.filling = [request for request in self.filling if request not in ready]
        return ready

    def secure_step(self) -> None:
        """Give every running request the slots of one step, retracting others if needed."""
        width = self._runtime.step_slots
        memory = self._runtime.memory
        for request in list(self.running):
            if request not in self.running:
                continue
            while True:
                try:
                    memory.ensure(request.table(), request.kv_length + width)
                    break
                except OutOfPages:
                    victim = self._victim()
                    self._retract(victim)
                    if victim is request:
                        break

    def _victim(self) -> Request:
        """The request that loses least: the fewest answer tokens, the latest among equals."""
        return min(self.running, key=lambda request: (len(request.output), -request.number))

    def _retract(self, request: Request) -> None:
        if len(self.running) == 1 and not self.filling:
            request.finish = Finish(
                "abort", message="Out of memory: the request does not fit even alone.", status_code=500
            )
            self._free(request, keep=False)
            self.running.remove(request)
            request.report(self._runtime.hooks)
            return
        self._free(request, keep=True)
        request.retractions += 1
        self.retracted += 1
        self.waiting.appendleft(request)
        self.running.remove(request)

    def release_finished(self) -> list[Request]:
        """Free the memory of finished requests, then tell their owners; returns them."""
        finished = [request for request in self.running if request.finish is not None]
        if finished:
            for request in finished:
                self._runtime.hooks.finished(self._runtime, request)
                self._free(request, keep=True)
            self.running = [request for request in self.running if request.finish is None]
            for request in finished:
                request.report(self._runtime.hooks)
        return finished

    def _free(self, request: Request, *, keep: bool) -> None:
        holding = request.holding
        if holding is None:
            return
        valid = min(request.kv_length, request.length) if keep else 0
        self._runtime.memory.release(holding, request.tokens(0, valid))
        request.holding = None
        request.kv_length = 0

    def abort(self, request: Request, message: str, status_code: int | None = None) -> None:
        """End a request wherever it is."""
        if request.finish is not None:
            return
        request.finish = Finish("abort", message=message, status_code=status_code)
        if request in self.waiting:
            self.waiting.remove(request)
        elif request in self.filling:
            self._free(request, keep=True)
            self.filling.remove(request)
        elif request in self.running:
            others = [other for other in self.running if other is not request]
            self._runtime.hooks.aborted(self._runtime, request, others)
            self._free(request, keep=True)
            self.running.remove(request)
        request.report(self._runtime.hooks)

    def everyone(self) -> list[Request]:
        return [*self.running, *self.filling, *self.waiting]
