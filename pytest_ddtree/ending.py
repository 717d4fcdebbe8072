"""The moment from which on a session ends."""

from __future__ import annotations

import pytest

from pytest_ddtree.session import ENDING, LEAVING


class Leaving:
    """Notes that a signal reached pytest, which prints its tables and ends."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config

    @pytest.hookimpl(tryfirst=True)
    def pytest_keyboard_interrupt(self) -> None:
        """Of Ctrl-C, SIGTERM and SIGHUP."""
        self._config.stash[LEAVING] = True


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Note that the tests are over."""
    session.config.stash[ENDING] = True
