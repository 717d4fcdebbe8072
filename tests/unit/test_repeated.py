"""One error under many tests is quoted once."""

from __future__ import annotations

from pathlib import Path

from pytest_ddtree.repeated import Repeated
from pytest_ddtree.servers.errors import StartFailed


def test_the_log_ends_once() -> None:
    error = StartFailed(
        "it died", why="a cause", hint="do this", log_path=Path("x.log"), log_tail="line\nlast"
    )
    known = Repeated()
    assert known.shorter(str(error), "t::first") is None
    assert known.shorter(str(error), "t::first") is None, "setup and teardown of one test"
    assert known.shorter(str(error), "t::second") == (
        "it died\ncause: a cause\nwhat to do: do this\nlog: x.log\nas under t::first, which has the end of the log"
    )
    other = StartFailed("it died", why="a cause", log_tail="another line")
    assert known.shorter(str(other), "t::second") is None
    assert known.shorter("a text without a log", "t::third") is None
