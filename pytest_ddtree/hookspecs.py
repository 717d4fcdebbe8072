"""Hooks of the plugin, for conftest files and other plugins."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pytest_ddtree.exactness.verdict import Verdict
    from pytest_ddtree.grid import Config
    from pytest_ddtree.options import Settings
    from pytest_ddtree.results.model import CellFigures


@pytest.hookspec(firstresult=True)
def pytest_ddtree_grid(settings: Settings) -> tuple[Config, ...] | None:
    """Return the speculative configs of the session, or None for the product of the options.

    Called once, at collection; starts nothing.
    """


@pytest.hookspec
def pytest_ddtree_verified(config: Config, verdict: Verdict) -> None:
    """Called after a config was verified at a level, whatever came out."""


@pytest.hookspec
def pytest_ddtree_measured(config: Config, figures: CellFigures) -> None:
    """Called after a cell was measured."""
