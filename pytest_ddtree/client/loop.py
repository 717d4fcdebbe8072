"""An event loop in a thread of its own, for callers that are not asynchronous."""

from __future__ import annotations

import asyncio
import concurrent.futures
import importlib.util
import threading
from collections.abc import Callable, Coroutine
from typing import Any, Self, TypeVar

_CANCEL_GRACE_S = 2.0
_STREAMS_WITH_STAMPS = 256

T = TypeVar("T")


def loop_factory(streams: int) -> Callable[[], asyncio.AbstractEventLoop]:
    """What makes the loop for that many streams at once.

    Plain asyncio, on which the kernel stamps the arrivals, costs more for each chunk than uvloop; with more
    streams than it can read in time, its reads come together and the stamps stop being exact.
    """
    if streams > _STREAMS_WITH_STAMPS and importlib.util.find_spec("uvloop") is not None:
        import uvloop

        factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
        return factory
    return asyncio.new_event_loop


class LoopThread:
    """Owns one event loop in one daemon thread; starts with the first `run`, ends with `close`.

    `factory` makes the loop (default: plain asyncio, which the kernel-stamp reader needs).
    """

    def __init__(self, factory: Callable[[], asyncio.AbstractEventLoop] = asyncio.new_event_loop) -> None:
        self._factory = factory
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def run(self, coro: Coroutine[Any, Any, T], timeout: float | None = None) -> T:
        """The result of a coroutine that runs in the loop. What `wait` says holds for it."""
        return self.wait(self.begin(coro), timeout)

    def begin(self, coro: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        """Let a coroutine run in the loop while the caller goes on."""
        return asyncio.run_coroutine_threadsafe(coro, self._started())

    def wait(self, future: concurrent.futures.Future[T], timeout: float | None = None) -> T:
        """The result of what `begin` began.

        TimeoutError after `timeout` seconds. Whatever ends the wait (a timeout, KeyboardInterrupt,
        `pytest.exit` in a signal handler) cancels the coroutine, gives it two seconds to clean up, and
        goes on up.
        """
        try:
            return future.result(timeout)
        except BaseException:
            if not future.done():
                future.cancel()
                self._settle()
            raise

    def close(self) -> None:
        """Cancel what still runs, close the loop, end the thread. May be called twice."""
        with self._lock:
            loop, thread = self._loop, self._thread
            self._loop = self._thread = None
        if loop is None or thread is None:
            return
        loop.call_soon_threadsafe(loop.stop)
        if thread is not threading.current_thread():
            thread.join(_CANCEL_GRACE_S * 2)

    def _started(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                loop = self._loop = self._factory()
                self._thread = threading.Thread(
                    target=_main, args=(loop,), name="ddtree-client-loop", daemon=True
                )
                self._thread.start()
            return self._loop

    def _settle(self) -> None:
        """Let the cancellation that was just sent reach its coroutine and run its clean-up."""
        loop = self._loop
        if loop is None:
            return
        settled = asyncio.run_coroutine_threadsafe(_wait_cancelled(), loop)
        try:
            settled.result(_CANCEL_GRACE_S)
        except (concurrent.futures.TimeoutError, concurrent.futures.CancelledError):
            settled.cancel()


async def _wait_cancelled() -> None:
    own = asyncio.current_task()
    cancelled = [task for task in asyncio.all_tasks() if task is not own and task.cancelling()]
    if cancelled:
        await asyncio.wait(cancelled)


def _main(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
        tasks = asyncio.all_tasks(loop)
        for task in tasks:
            task.cancel()
        if tasks:
            loop.run_until_complete(asyncio.wait(tasks, timeout=_CANCEL_GRACE_S))
        loop.run_until_complete(loop.shutdown_asyncgens())
        # A closed transport lets go of its socket one turn of the loop later.
        loop.run_until_complete(asyncio.sleep(0))
    finally:
        asyncio.set_event_loop(None)
        loop.close()
