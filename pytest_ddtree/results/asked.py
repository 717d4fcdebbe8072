"""What a stored run was asked to measure, as far as its record tells. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pytest_ddtree.budget import FLAG
from pytest_ddtree.grid import CellKey, make_grid
from pytest_ddtree.results.model import is_baseline
from pytest_ddtree.results.runs import StoredRun
from pytest_ddtree.where import WhereError, parse_where


def asked_configs(stored: StoredRun) -> frozenset[str] | None:
    """The ids of the grid of its options, of all sessions; None where the record does not tell: it has no options, or what was
    measured is none of these, because a hook made the grid."""
    found: set[str] = set()
    try:
        for settings in stored.every_settings:
            where = settings.get("where")
            grid = make_grid(
                settings["budget"],
                settings["topk"],
                settings["window"],
                settings["block_size"],
                keep=None if where is None else parse_where(where).keeps,
            )
            found.update(config.id for config in grid)
    except (KeyError, TypeError, ValueError, AttributeError, WhereError):
        return None
    measured = {config for config, _ in stored.results.cells if not is_baseline(config)}
    return frozenset(found) if found and measured <= found else None


def asks_for(stored: StoredRun, key: CellKey) -> bool:
    """Whether a cell may be one of its options; also where the record does not tell."""
    sessions = list(stored.every_settings)
    return not sessions or any(_takes(settings, key) for settings in sessions)


def out_of_time(stored: StoredRun) -> bool:
    """Whether it says that its time budget was spent before all tests had begun."""
    return any(text.startswith(FLAG) for text in stored.results.warnings)


def _takes(settings: Mapping[str, Any], key: CellKey) -> bool:
    def among(axis: str, value: object) -> bool:
        items = settings.get(axis)
        return not isinstance(items, list) or value in items or _any_value(axis, items)

    return (
        among("context", key.context)
        and among("concurrency", key.concurrency)
        and among("workload", key.workload)
        and among("temperature", key.temperature)
        and among("cache", key.cache)
    )


def _any_value(axis: str, items: list[Any]) -> bool:
    """Whether an item stands for what the record does not name: a file of questions, a checkpoint's own temperature."""
    texts = [item for item in items if isinstance(item, str)]
    return (axis == "temperature" and bool(texts)) or (
        axis == "workload" and any(":" in one for one in texts)
    )
