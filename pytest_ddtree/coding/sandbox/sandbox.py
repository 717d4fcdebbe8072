"""The sandbox: a pool of zygotes and the ways to run a solution in them."""

from __future__ import annotations

import contextlib
import os
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from . import examination, programs
from .capabilities import ADVICE, OFF, SandboxCapabilities, from_hello
from .errors import SandboxBrokenError, SandboxError, SandboxOffWarning, SandboxUnavailableError
from .gate import Gate
from .inner.codec import decode
from .limits import Limits
from .results import CallResult, Done, Ended, Examined, ProgramResult, StepResult, Value
from .run import Run, encoded
from .selftest import ESCAPES
from .zygote_process import Mode, ZygoteProcess, interpreter

_T = TypeVar("_T")
Call = tuple[tuple[Any, ...], dict[str, Any]]


class Sandbox:
    """Runs untrusted Python. Use as a context manager; safe to use from several threads.

    limits: what a run may use. mode: "strict" refuses to work without kernel filters, "off" has resource
    limits only and says so in a SandboxOffWarning. workers: zygotes at most, which is how many runs go on at
    once; default the number of usable CPUs. without: layers to do without ("landlock", "namespaces",
    "seccomp"), as on an older system.

    Opening raises SandboxUnavailableError when this system has no sandbox. Any method may raise SandboxError,
    which never says anything about the solution.
    """

    def __init__(
        self,
        limits: Limits | None = None,
        mode: Mode = "strict",
        *,
        workers: int | None = None,
        without: Sequence[str] = (),
    ) -> None:
        self.limits = limits or Limits()
        self.mode: Mode = mode
        self.workers = workers or len(os.sched_getaffinity(0))
        self._without = tuple(without)
        self._gate = Gate()
        self._lock = threading.Lock()
        self._idle: list[ZygoteProcess] = []
        self._all: set[ZygoteProcess] = set()
        self._slots = threading.Semaphore(self.workers)
        self._maker: ThreadPoolExecutor | None = None
        self._capabilities: SandboxCapabilities | None = None

    def __enter__(self) -> Sandbox:
        return self.open()

    def __exit__(self, *_: object) -> None:
        self.close()

    def open(self) -> Sandbox:
        """Starts the first zygote and tries to break out of it."""
        if self.mode == "off":
            warnings.warn(OFF, SandboxOffWarning, stacklevel=3)
        # Zygotes die with the thread that started them, so one thread starts them all and stays until the
        # end.
        self._maker = ThreadPoolExecutor(1, thread_name_prefix="ddtree-sandbox")
        try:
            zygote = self._make()
            capabilities = from_hello(zygote.hello, self.mode, interpreter())
            if not capabilities.usable:
                raise SandboxUnavailableError(f"{capabilities.describe()}\n{ADVICE}")
            self._capabilities = capabilities
            self._idle.append(zygote)
            if self.mode == "strict":
                self._try_to_escape()
        except BaseException:
            self.close()
            raise
        return self

    def close(self) -> None:
        """Ends every process of the sandbox; runs under way in other threads end with SandboxError."""
        with self._lock:
            everyone, self._idle = list(self._all), []
            self._all.clear()
            maker, self._maker = self._maker, None
        for zygote in everyone:
            zygote.close()
        if maker is not None:
            maker.shutdown()

    @property
    def capabilities(self) -> SandboxCapabilities:
        """The layers in force."""
        if self._capabilities is None:
            raise SandboxError("the sandbox is not open")
        return self._capabilities

    @property
    def pids(self) -> list[int]:
        """Process ids of the zygotes."""
        with self._lock:
            return [zygote.pid for zygote in self._all]

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Inside, runs of this thread are the only ones; waits for those under way."""
        with self._gate.alone():
            yield

    @contextlib.contextmanager
    def session(self, source: str, *, steps: int = 1000) -> Iterator[tuple[Run, StepResult]]:
        """A child with `source` loaded, and how loading went. `steps`: calls that will be made at most."""
        with self._lease() as zygote, Run(zygote, self.limits, steps + 1) as run:
            yield run, run.step("load", source)

    def run_function(self, source: str, entry_point: str, calls: Sequence[Call]) -> list[CallResult]:
        """Answers in order, one call at a time; shorter than `calls` when the run ended, with the end as the
        last.

        A source that does not load gives that as the only answer.
        """
        answers: list[CallResult] = []
        with self.session(source, steps=len(calls)) as (run, loaded):
            if not isinstance(loaded, Done):
                return [loaded]
            for arguments, keywords in calls:
                answers.append(call(run, entry_point, arguments, keywords))
                if isinstance(answers[-1], Ended):
                    break
        return answers

    def run_program(self, source: str, stdin: str | bytes) -> ProgramResult | StepResult:
        """Runs `source` as `__main__` with `stdin` on descriptor 0 (text as UTF-8)."""
        data = stdin.encode("utf-8", "surrogateescape") if isinstance(stdin, str) else stdin
        return self._with_zygote(lambda zygote: programs.run_program(zygote, self.limits, source, data))

    def examine(self, source: str, entry_point: str, *, prelude: str, test: str) -> Examined | StepResult:
        """Lets `test` (and its `check(candidate)`) call the solution; `prelude` defines names the test
        borrows.
        """
        return self._with_zygote(
            lambda zygote: examination.examine(zygote, self.limits, source, entry_point, prelude, test)
        )

    def run_asserts(self, source: str, entry_point: str, test: str) -> StepResult:
        """Runs `test` in the solution's own process. Weaker: a solution can forge the verdict."""
        with self.session(source) as (run, loaded):
            return run.step("asserts", test, entry_point) if isinstance(loaded, Done) else loaded

    def _with_zygote(self, work: Callable[[ZygoteProcess], _T]) -> _T:
        with self._lease() as zygote:
            return work(zygote)

    @contextlib.contextmanager
    def _lease(self) -> Iterator[ZygoteProcess]:
        with self._gate.shared(), self._slots:
            with self._lock:
                if self._capabilities is None or self._maker is None:
                    raise SandboxError("the sandbox is not open")
                zygote = self._idle.pop() if self._idle else None
            zygote = zygote or self._make()
            try:
                yield zygote
            except BaseException as error:
                # A fault of the problem comes when its run is over. What was interrupted may be half done.
                if isinstance(error, SandboxBrokenError) or not isinstance(error, Exception):
                    self._drop(zygote)
                else:
                    self._give_back(zygote)
                raise
            self._give_back(zygote)

    def _make(self) -> ZygoteProcess:
        with self._lock:
            maker = self._maker
            if maker is None:
                raise SandboxError("the sandbox is not open")
            coming = maker.submit(self._start, maker)
        return coming.result()

    def _start(self, maker: ThreadPoolExecutor) -> ZygoteProcess:
        """In the maker's thread: whoever waits for it may be interrupted, and `close` must know of it all the same."""
        zygote = ZygoteProcess(self.mode, self._without)
        with self._lock:
            if self._maker is maker:
                self._all.add(zygote)
                return zygote
        zygote.close()
        raise SandboxError("the sandbox was closed meanwhile")

    def _give_back(self, zygote: ZygoteProcess) -> None:
        with self._lock:
            if zygote in self._all:
                self._idle.append(zygote)

    def _drop(self, zygote: ZygoteProcess) -> None:
        with self._lock:
            mine = zygote in self._all
            self._all.discard(zygote)
        if mine:
            zygote.close()

    def _try_to_escape(self) -> None:
        with self._lease() as zygote, Run(zygote, Limits(), 2) as run:
            answer: object = run.step("load", ESCAPES)
            if isinstance(answer, Done):
                answer = call(run, "escapes", (os.path.abspath(__file__),), {})
        if not isinstance(answer, Value):
            raise SandboxUnavailableError(f"the sandbox's self-test did not run: {answer}\n{ADVICE}")
        found = decode(answer.encoded)
        if found:
            raise SandboxUnavailableError(f"the sandbox leaks: {', '.join(map(str, found))}\n{ADVICE}")


def call(run: Run, entry_point: str, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> CallResult:
    """One call of a loaded solution's function."""
    return run.call("call", entry_point, encoded(arguments), encoded(keywords))


def probe(mode: Mode = "strict") -> SandboxCapabilities:
    """What this system offers. Never raises for a missing layer: `usable` and `reasons` tell."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SandboxOffWarning)
            with Sandbox(mode=mode, workers=1) as sandbox:
                return sandbox.capabilities
    except SandboxError as error:
        return SandboxCapabilities(usable=False, mode=mode, interpreter=interpreter(), reasons=(str(error),))
