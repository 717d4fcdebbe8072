"""Rounds and cells made up for tests, with the figures that a test cares about."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pytest_ddtree.grid import CellKey
from pytest_ddtree.results.model import CellFigures, Round

KEY = CellKey(60, 4)


def a_round(number: int = 0, tok_s: float = 500.0, **changes: Any) -> Round:
    fields: dict[str, Any] = {
        "config": "b8-k4-wnone",
        "key": KEY,
        "number": number,
        "requests": 4,
        "tokens": 256,
        "wall_s": 256 / tok_s,
        "ttft_s": (0.01, 0.02, 0.03, 0.04),
        "time_per_token_s": (0.002,) * 4,
        "latency_s": (0.2,) * 4,
        "verify_steps": 64,
        "cached_tokens": 0,
        "decode_tok_s": 600.0,
    }
    return Round(**{**fields, **changes})


def a_cell(
    rates: Sequence[float], *, config: str = "b8-k4-wnone", key: CellKey = KEY, **changes: Any
) -> CellFigures:
    rounds = tuple(
        a_round(number, rate, config=config, key=key, **changes) for number, rate in enumerate(rates)
    )
    return CellFigures(config=config, key=key, rounds=rounds)
