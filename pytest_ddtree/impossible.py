"""Configs of the grid that the build cannot express: found before anything starts, said, and never dropped in silence."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import pytest

from pytest_ddtree.axis_flags import refused_axes
from pytest_ddtree.errors import Infrastructure
from pytest_ddtree.items import judged_config_of

if TYPE_CHECKING:
    from pytest_ddtree.run import Run


def set_aside(run: Run, items: Sequence[pytest.Item]) -> list[str]:
    """Skip the tests of configs that the build cannot run; returns why, one line a config.

    Raises UsageError, listing what the build has, when no speculative config is left, or when an axis is nothing that the build takes.
    What cannot be found out now is left to the tests, whose error says it.
    """
    speculative = {config for config in run.plan.configs if config.speculative}
    axes = {config.axis for config in speculative if config.axis is not None}
    try:
        why = run.unsupported(speculative)
        odd = refused_axes(axes, embedded=run.settings.server == "reference", flags=run.flags())
    except Infrastructure:
        return []
    if odd:
        raise pytest.UsageError("\n".join(odd))
    lines = [f"{config.id} cannot run on this build: {why[config]}" for config in sorted(why, key=str)]
    if speculative and len(why) == len(speculative):
        raise pytest.UsageError("\n".join(lines))
    for item in items:
        config = judged_config_of(item)
        if config in why:
            item.add_marker(pytest.mark.skip(reason=f"this build cannot run {config.id}: {why[config]}"))
    for line in lines:
        run.warn(line)
    return lines
