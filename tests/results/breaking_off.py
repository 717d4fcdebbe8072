"""A pytest plugin for a session: the first cell breaks off after two rounds, as it does when the client was the limit for a moment."""

from __future__ import annotations

from typing import Any

from pytest_ddtree import speed
from pytest_ddtree.results.model import Round
from pytest_ddtree.workload.cell import CellNotMeasured

measure_rounds = speed.measure_rounds
kept: list[Round] = []


async def _breaks_off(*arguments: Any, keep: Any, **more: Any) -> tuple[Round, ...]:
    def count(one: Round) -> None:
        keep(one)
        kept.append(one)
        if len(kept) == 2:
            raise CellNotMeasured("broken off by a test")

    return await measure_rounds(*arguments, keep=count, **more)


speed.measure_rounds = _breaks_off
