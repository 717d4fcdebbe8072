"""Public fixtures of the exactness suite beyond verdicts and clauses. Thin: they hand on what `Run` does."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pytest_ddtree.grid import Config
    from pytest_ddtree.run import Run


@pytest.fixture
def ddtree_search(ddtree_run: Run) -> Callable[[Config], str | None]:
    """Runs `--ddtree-fuzz` schedules on a config; the report of the first that fails, else None."""
    from pytest_ddtree.searching import Searcher

    return Searcher(ddtree_run).search


@pytest.fixture
def ddtree_replay(ddtree_run: Run) -> Callable[[Config], str | None]:
    """Runs the schedule of `--ddtree-trace` once more on a config; why it fails, else None."""
    from pytest_ddtree.searching import Searcher

    path = ddtree_run.settings.trace
    if path is None:
        raise pytest.UsageError("ddtree_replay runs a saved schedule: name it with --ddtree-trace=FILE")
    searcher = Searcher(ddtree_run)
    return lambda config: searcher.replay(config, path)
