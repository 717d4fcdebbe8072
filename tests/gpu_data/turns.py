"""Kept rounds of builds in turns, under the rule of the comparison."""

from __future__ import annotations

from typing import Any

from pytest_ddtree.grid import CellKey
from pytest_ddtree.results.change import Comparison
from pytest_ddtree.results.model import CellFigures, Results, Round
from pytest_ddtree.results.taking_turns import AbDesign


def compared(run: dict[str, Any], builds: tuple[str, str], passes: int) -> Comparison:
    """The rule over the rounds of the first so many passes; times other than that of a round are no part of this."""
    sides: list[Results] = []
    for build in builds:
        cells: dict[tuple[str, CellKey], list[Round]] = {}
        for name, rounds in run["rounds"].items():
            of, config, cell, _ = name.split(" ")
            if of != build or config == "baseline":
                continue
            context, concurrency = (int(part.lstrip("ctx")) for part in cell.split("-"))
            for number, wall_s, tokens, steps, *_ in rounds:
                if number < passes * run["ab"]["rounds"]:
                    key = CellKey(context=context, concurrency=concurrency)
                    cells.setdefault((config, key), []).append(
                        a_round(config, key, number, wall_s, tokens, steps)
                    )
        sides.append(
            Results(
                cells={
                    cell: CellFigures(config=cell[0], key=cell[1], rounds=tuple(found), stopped="max_rounds")
                    for cell, found in cells.items()
                }
            )
        )
    config = next(config for config, _ in sides[0].cells)
    design = AbDesign(
        rounds=run["ab"]["rounds"], passes=run["ab"]["passes"], alpha=0.001, configs=1, headline=()
    )
    return design.compare(*sides, config=config, names=builds, passes=(passes, passes))


def a_round(config: str, key: CellKey, number: int, wall_s: float, tokens: int, steps: int) -> Round:
    return Round(
        config=config,
        key=key,
        number=number,
        requests=key.concurrency,
        tokens=tokens,
        wall_s=wall_s,
        ttft_s=(0.04,),
        time_per_token_s=(0.005,),
        latency_s=(wall_s,),
        verify_steps=steps,
        cached_tokens=None,
        decode_tok_s=None,
        tokens_after_end=0,
    )
