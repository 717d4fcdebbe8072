"""What becomes of a session whose results cannot be written any more: errors, said once each, and no measuring that cannot be kept."""

from __future__ import annotations

from collections.abc import Generator

import pytest

from pytest_ddtree.errors import NotKept, no_room
from pytest_ddtree.items import is_ours
from pytest_ddtree.session import RUN

LOST = pytest.StashKey[str]()
"""Why nothing of this session can be kept any more."""


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """A test of ours does not begin when what it finds could not be kept. Raises NotKept."""
    if not is_ours(item):
        return
    run = item.config.stash.get(RUN, None)
    if run is not None:
        run.file.check()
    if LOST in item.config.stash:
        raise NotKept(item.config.stash[LOST])


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A full disk says nothing about an engine: an error, in words, whichever write met it."""
    report = yield
    if call.excinfo is None or not is_ours(item):
        return report
    found = call.excinfo.value
    error = found if isinstance(found, NotKept) else no_room(found) if isinstance(found, OSError) else None
    if error is not None:
        item.config.stash.setdefault(LOST, str(error))
        report.outcome = "failed"
        if call.when == "call":
            report.when = "setup"
        report.longrepr = f"{type(error).__name__}: {error}"
    return report
