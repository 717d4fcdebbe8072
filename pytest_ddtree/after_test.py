"""Before every test of ours its server lives; after it the server is idle again and its cache is whole, or the test failed."""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING

import pytest

from pytest_ddtree.errors import Infrastructure
from pytest_ddtree.items import is_ours
from pytest_ddtree.session import RUN

if TYPE_CHECKING:
    from pytest_ddtree.run import Run


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, None, None]:
    """Replace a server that died in an earlier test, and look at the servers when the test's body is done.

    Raises pytest's failure, naming what is left, and Infrastructure for a server that is gone; a test that failed by itself keeps
    its own failure, and what is left is a section of its report.
    """
    if not is_ours(item):
        return (yield)
    _replace_broken(item)
    try:
        result = yield
    except (KeyboardInterrupt, pytest.exit.Exception):
        raise
    except pytest.skip.Exception:
        _fail(item)
        raise
    except BaseException:
        try:
            left = _left(item)
        except Infrastructure as error:
            left = [str(error)]
        if left:
            item.add_report_section("call", "servers after the test", "\n".join(left))
        raise
    _fail(item)
    return result


def _replace_broken(item: pytest.Item) -> None:
    """The fixture keeps its handle for all tests of a config, so that a server that died in one of them is replaced here."""
    run: Run | None = item.config.stash.get(RUN, None)
    config = getattr(item, "callspec", None) and item.callspec.params.get("ddtree_server")  # type: ignore[attr-defined]
    if run is None or config is None:
        return
    server = run.handle(config)
    if server is not None and server.broken:
        run.get(config, best=server.variant == "best")


def _fail(item: pytest.Item) -> None:
    if left := _left(item):
        pytest.fail("\n".join(left), pytrace=False)


def _left(item: pytest.Item) -> list[str]:
    run: Run | None = item.config.stash.get(RUN, None)
    if run is None:
        return []
    left = run.left_running()
    if run.settings.server == "url":
        # Others may use it: what they leave on it is no failure of ours.
        for text in left:
            run.warn(f"{text} (or somebody else uses this server)")
        return []
    return left
