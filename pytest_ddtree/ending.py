"""How a session ends that somebody interrupts, and the moment from which on every session does."""

from __future__ import annotations

import math
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from pytest_ddtree.session import ASKED, ENDING, INTERRUPTED, LEAVING, leave

SAME_WISH_S = 1.0
"""Signals come twice (`timeout` tells its child, then the child's group): a second one no later than this means the first."""


class Signals:
    """Handles SIGTERM and SIGHUP, and hears of Ctrl-C.

    A cancelled CI job sends SIGTERM, a terminal that is closed SIGHUP: both would end pytest without tables and without tearing
    fixtures down. Who started pytest with `nohup` wants it to go on.
    """

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._alarms: list[Callable[[], None]] = []
        self._before: dict[int, Any] = {}
        config.pluginmanager.register(self)

    def watch(self, alarm: Callable[[], None]) -> None:
        """Let signals call `alarm` too, which begins to stop servers and returns at once. What is closed at the end is to be said after
        this: until it is closed, signals are handled."""
        self._alarms.append(alarm)
        if self._before or threading.current_thread() is not threading.main_thread():
            return
        ends = [signal.SIGTERM]
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
            ends.append(signal.SIGHUP)
        self._config.add_cleanup(self._put_back)
        self._before = {number: signal.signal(number, self._stop) for number in ends}

    @pytest.hookimpl(tryfirst=True)
    def pytest_keyboard_interrupt(self, excinfo: pytest.ExceptionInfo[BaseException]) -> None:
        """Of Ctrl-C, SIGTERM, SIGHUP and `pytest.exit`: pytest tears down, prints its tables and ends."""
        self._config.stash[LEAVING] = True
        if excinfo.errisinstance(KeyboardInterrupt):
            # The interpreter told the supervisor, unless something else in this process took its wake-up over.
            self._alarm()

    def pytest_unconfigure(self) -> None:
        """The tables are printed: a first signal now ends pytest as it does where this plugin is not; the supervisor does the rest."""
        if INTERRUPTED not in self._config.stash and not self._config.stash.get(LEAVING, False):
            self._put_back()

    def _stop(self, number: int, frame: object) -> None:
        stash = self._config.stash
        again = INTERRUPTED in stash
        stash.setdefault(INTERRUPTED, 128 + number)
        self._alarm()
        # Raised while pytest deals with the first, it would cost the tables and the exit code. That pytest was asked does not say
        # that it heard: who asks again after a while is to be answered.
        dealt_with = stash.get(LEAVING, False) or (again and stash.get(ENDING, False))
        if not dealt_with and time.monotonic() - stash.get(ASKED, -math.inf) > SAME_WISH_S:
            leave(self._config)

    def _alarm(self) -> None:
        for alarm in self._alarms:
            alarm()

    def _put_back(self) -> None:
        while self._before:
            number, handler = self._before.popitem()
            signal.signal(number, handler)


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Note that the tests are over."""
    session.config.stash[ENDING] = True
