"""The thread that owns the models: it takes commands, runs prefill and decode passes and delivers updates."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from queue import Empty, SimpleQueue

import numpy as np

from .decode import decode
from .faults.switch import Switch
from .hooks import Hooks
from .prefill import prefill
from .request import Request, Submission, Update
from .runtime import Runtime
from .scheduler import Scheduler
from .speculate import speculate
from .stops import StopChecker
from .tokenizer import Tokenizer

log = logging.getLogger("ddtree.reference")


@dataclass(slots=True)
class Counters:
    """Totals since start; written by the engine thread, read by anybody."""

    requests: int = 0
    aborted: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    generation_tokens: int = 0
    verify_calls: int = 0
    prefill_passes: int = 0
    decode_passes: int = 0
    gen_throughput: float = 0.0
    accept_length: float | None = None
    accept_rate: float | None = None
    total_accept_length: float | None = None


@dataclass(slots=True)
class _Interval:
    """What happened since the last line of the log about decoding."""

    started: float = field(default_factory=time.perf_counter)
    passes: int = 0
    tokens: int = 0
    verifies: int = 0


class Engine:
    """Public methods may be called from any thread; they enqueue a command and return.

    ``on_pass`` runs in the engine thread whenever updates of several requests may have been delivered, so that the
    receiver can take them together; ``on_crash`` when the thread dies.
    """

    def __init__(
        self,
        runtime: Runtime,
        tokenizer: Tokenizer,
        *,
        on_crash: Callable[[BaseException], None],
        on_pass: Callable[[], None] = lambda: None,
    ) -> None:
        self.runtime = runtime
        self.counters = Counters()
        self._tokenizer = tokenizer
        self._on_crash = on_crash
        self._on_pass = on_pass
        self._commands: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._scheduler = Scheduler(runtime)
        # By number: nothing keeps clients from using one id twice.
        self._requests: dict[int, Request] = {}
        self._numbers = 0
        self._stopping = False
        self._interval = _Interval()
        self._spec_tokens = 0
        self._spec_verifies = 0
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Ask the thread to end after the current pass; does not wait."""

        def command() -> None:
            self._stopping = True

        self._commands.put(command)

    @property
    def running(self) -> int:
        # In the order in which a request goes through them, or one on its way would be missed.
        filling = len(self._scheduler.filling)
        return filling + len(self._scheduler.running)

    @property
    def waiting(self) -> int:
        return len(self._scheduler.waiting)

    @property
    def occupancy(self) -> tuple[int, int]:
        """(running, waiting) such that a request on its way from the one to the other is in one of them at least."""
        before = self.waiting
        running = self.running
        # One that was retracted meanwhile is waiting again.
        return running, max(before, self.waiting)

    @property
    def retracted(self) -> int:
        return self._scheduler.retracted

    def submit(self, submission: Submission, deliver: Callable[[Update], None]) -> None:
        """Queue a request; ``deliver`` is called from the engine thread."""
        self._commands.put(lambda: self._submit(submission, deliver))

    def abort(self, rid: str, message: str = "Aborted") -> None:
        """End every request whose id starts with ``rid``; an empty id means all."""
        self._commands.put(lambda: self._abort(lambda one: one.submission.rid.startswith(rid), message))

    def depart(self, deliver: Callable[[Update], None]) -> None:
        """End the one request that was submitted with this ``deliver``: nobody waits for it any more."""
        self._commands.put(lambda: self._abort(lambda one: one.deliver is deliver, "The client is gone."))

    def flush_cache(self, done: Callable[[bool], None]) -> None:
        """Forget cached prefixes; ``done(False)`` when something runs or waits."""
        self._commands.put(lambda: done(self._flush()))

    def plant(self, hooks: Hooks, done: Callable[[bool], None]) -> None:
        """Exchange the planted faults and begin as a fresh server would; ``done(False)`` when something runs or waits.

        Only for a runtime whose hooks are a `Switch`.
        """
        self._commands.put(lambda: done(self._plant(hooks)))

    def _submit(self, submission: Submission, deliver: Callable[[Update], None]) -> None:
        self._numbers += 1
        config = self.runtime.target.config
        submission = replace(submission, params=self.runtime.hooks.params(submission.params))
        checker = StopChecker(submission.params, config.eos_token_ids, self._tokenizer)
        request = Request(submission, checker, deliver, self._numbers)
        self.counters.requests += 1
        self._scheduler.submit(request)
        if request.finish is None:
            self._requests[request.number] = request
        else:
            self.counters.aborted += 1

    def _abort(self, meant: Callable[[Request], bool], message: str) -> None:
        for request in [found for found in self._requests.values() if meant(found)]:
            self._scheduler.abort(request, message)
            self._requests.pop(request.number, None)
            self.counters.aborted += 1

    def _flush(self) -> bool:
        if not self._scheduler.idle:
            return False
        self.runtime.memory.cache.reset()
        return True

    def _plant(self, hooks: Hooks) -> bool:
        switch = self.runtime.hooks
        if not isinstance(switch, Switch) or not self._flush():
            return False
        switch.use(hooks)
        # Faults of every Nth request count from here.
        self._numbers = 0
        return True

    def _run(self) -> None:
        try:
            with np.errstate(all="ignore"):
                while not self._stopping:
                    self._take_commands()
                    if not self._scheduler.idle:
                        self._pass()
        except BaseException as error:
            log.exception("Scheduler hit an exception")
            self._on_crash(error)

    def _take_commands(self) -> None:
        if self._scheduler.idle and not self._stopping:
            self._commands.get()()
        while True:
            try:
                self._commands.get_nowait()()
            except Empty:
                self._on_pass()
                return

    def _pass(self) -> None:
        """One prefill pass and one decode pass, whichever has work."""
        self._expire()
        scheduler = self._scheduler
        pieces = scheduler.next_pieces()
        if pieces:
            prefill(self.runtime, pieces)
            self._after_prefill(sum(piece.end - piece.begin for piece in pieces), len(pieces))
        for request in scheduler.filled():
            if request.first_token_at == 0.0:
                self._started(request)
            self._publish(request)
        self._forget(scheduler.release_finished())
        for request in scheduler.running:
            request.report(self.runtime.hooks)
        if scheduler.running:
            scheduler.secure_step()
        self._drop_finished()
        if scheduler.running:
            if pieces:
                # First tokens need not wait for the decode pass.
                self._on_pass()
                self._warm()
            self._decode()
            self._forget(scheduler.release_finished())
            for request in scheduler.running:
                request.report(self.runtime.hooks)
        self._on_pass()

    def _warm(self) -> None:
        """Before the first step of a request that is alone; with several the weights serve more rows a step."""
        draft = self.runtime.draft
        if draft is not None and len(self._scheduler.running) == 1:
            draft.warm()

    def _started(self, request: Request) -> None:
        request.first_token_at = time.perf_counter()
        self.counters.prompt_tokens += len(request.prompt)
        self.counters.cached_tokens += request.cached_tokens
        self.counters.generation_tokens += len(request.output)

    def _publish(self, request: Request) -> None:
        """Share the prompt's keys with requests that come while this one still runs."""
        self.runtime.memory.publish(request.table(), request.tokens(0, request.kv_length))

    def _forget(self, finished: list[Request]) -> None:
        for request in finished:
            self._requests.pop(request.number, None)

    def _drop_finished(self) -> None:
        """Requests that ended while memory was being found (they did not fit alone)."""
        for number in [number for number, request in self._requests.items() if request.finish is not None]:
            del self._requests[number]
            self.counters.aborted += 1

    def _decode(self) -> None:
        scheduler = self._scheduler
        # Not in place: a list is empty for other threads while it is being sorted.
        scheduler.running = sorted(scheduler.running, key=lambda request: request.kv_length)
        draft, hooks = self.runtime.draft, self.runtime.hooks
        count = len(scheduler.running)
        started = time.perf_counter()
        if draft is None or not hooks.speculate(True, scheduler.running):
            emitted = decode(self.runtime, scheduler.running)
        else:
            emitted = speculate(self.runtime, draft, scheduler.running)
            self.counters.verify_calls += count
            self._interval.verifies += count
            self._spec_tokens += emitted
            self._spec_verifies += count
        hooks.passed(self.runtime, scheduler.running, time.perf_counter() - started)
        self.counters.generation_tokens += emitted
        self.counters.decode_passes += 1
        interval = self._interval
        interval.passes += 1
        interval.tokens += emitted
        if interval.passes >= self.runtime.settings.decode_log_interval:
            self._log_decode(interval)
            self._interval = _Interval()

    def _expire(self) -> None:
        settings = self.runtime.settings
        if settings.waiting_timeout is None and settings.running_timeout is None:
            return
        now = time.perf_counter()
        for request in self._scheduler.everyone():
            if settings.waiting_timeout is not None and request.admitted_at is None:
                if now - request.arrived_at > settings.waiting_timeout:
                    self._abort_one(request, "Request waiting timeout reached.")
            elif (
                settings.running_timeout is not None
                and request.admitted_at is not None
                and now - request.admitted_at > settings.running_timeout
            ):
                self._abort_one(request, "Request running timeout reached.")

    def _abort_one(self, request: Request, message: str) -> None:
        self._scheduler.abort(request, message, 503)
        self._requests.pop(request.number, None)
        self.counters.aborted += 1

    def _usage(self) -> tuple[int, float]:
        used = self.runtime.memory.used
        return used, used / max(self.runtime.memory.total, 1)

    def _after_prefill(self, tokens: int, count: int) -> None:
        self.counters.prefill_passes += 1
        scheduler = self._scheduler
        cached = sum(request.cached_tokens for request in scheduler.filling if request.first_token_at == 0.0)
        log.info(
            "Prefill batch, #new-seq: %d, #new-token: %d, #cached-token: %d, token usage: %.2f, #running-req: %d, "
            "#queue-req: %d",
            count, tokens, cached, self._usage()[1], len(scheduler.running), len(scheduler.waiting),
        )  # fmt: skip

    def _log_decode(self, interval: _Interval) -> None:
        scheduler, counters = self._scheduler, self.counters
        used, share = self._usage()
        counters.gen_throughput = interval.tokens / max(time.perf_counter() - interval.started, 1e-9)
        speculation = ""
        draft = self.runtime.draft
        if draft is not None and interval.verifies:
            counters.accept_length = interval.tokens / interval.verifies
            counters.accept_rate = (counters.accept_length - 1) / max(draft.horizon, 1)
            counters.total_accept_length = self._spec_tokens / self._spec_verifies
            speculation = (
                f"accept len: {counters.accept_length:.2f}, accept rate: {counters.accept_rate:.2f}, "
            )
        log.info(
            "Decode batch, #running-req: %d, #token: %d, token usage: %.2f, %scuda graph: False, "
            "gen throughput (token/s): %.2f, #queue-req: %d",
            len(scheduler.running), used, share, speculation, counters.gen_throughput, len(scheduler.waiting),
        )  # fmt: skip
