"""Keeps what failed: a report that knows figures and verdicts alone would call a session fine in which nothing could be measured."""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING, Any, cast

import pytest

from pytest_ddtree.items import is_ours
from pytest_ddtree.session import AB, RUN

if TYPE_CHECKING:
    from pytest_ddtree.ab import Ab
    from pytest_ddtree.run import Run

LONGEST = 2000
"""Characters of a failure that are kept; the rest is in JUnit and on the terminal."""


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Outermost: what others make of a failure (an error, without secrets) is what is kept."""
    report = yield
    if is_ours(item) and (report.failed or report.when == "call"):
        keeper: Run | Ab | None = item.config.stash.get(RUN, None) or item.config.stash.get(AB, None)
        if keeper is not None:
            _keep(keeper, report)
    return report


def _keep(keeper: Run | Ab, report: pytest.TestReport) -> None:
    if report.failed:
        outcome = "failed" if report.when == "call" else "error"
        keeper.note_test(report.nodeid, outcome, _words(report)[:LONGEST])
    elif report.passed:
        keeper.note_test(report.nodeid, "passed", "")


def _words(report: pytest.TestReport) -> str:
    """What was raised, without the lines of the test around it."""
    crash = getattr(report.longrepr, "reprcrash", None)
    text = str(cast(Any, crash).message if crash is not None else report.longreprtext).strip()
    # pytest's own exception of `pytest.fail` says nothing.
    return text.removeprefix("Failed: ")
