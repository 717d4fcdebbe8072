"""The same error under many tests: the first report has all of it, the others name that one instead of repeating a log's end."""

from __future__ import annotations

import pytest

from pytest_ddtree.servers.errors import LOG_ENDS


class Repeated:
    """What was reported in this session, by whole text."""

    def __init__(self) -> None:
        self._first: dict[str, str] = {}

    def shorter(self, text: str, nodeid: str) -> str | None:
        """The text without the log's end, where another test was reported with the very same; None where it is new or has none."""
        body, ends, _ = text.partition(f"\n{LOG_ENDS}")
        if not ends:
            return None
        first = self._first.setdefault(text, nodeid)
        return None if first == nodeid else f"{body}\nas under {first}, which has the end of the log"


_KEY = pytest.StashKey[Repeated]()


def shorten(report: pytest.TestReport, config: pytest.Config) -> None:
    """Shorten what an error of infrastructure says when it was said before; verdicts are left alone."""
    if report.when == "setup" and report.failed and report.longrepr is not None:
        known = config.stash.setdefault(_KEY, Repeated())
        if (text := known.shorter(str(report.longrepr), report.nodeid)) is not None:
            report.longrepr = text
