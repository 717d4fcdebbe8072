"""The moment from which on a session ends."""

from __future__ import annotations

import pytest

from pytest_ddtree.session import ENDING


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Note that the tests are over."""
    session.config.stash[ENDING] = True
