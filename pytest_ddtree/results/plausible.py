"""What a stored record must be before figures are made of it: a damaged one is named by file and line, and never ends in a traceback."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

_OPTIONAL = (
    *(
        "verify_steps",
        "cached_tokens",
        "decode_tok_s",
        "prefill_tok_s",
        "counted_steps",
        "at",
        "most_after_end",
        "looping",
    ),
    *("distinct_4grams", "client_cpu", "client_lag_s", "coalesced", "start_no"),
)

OUTCOMES = ("regressed", "fine", "undecided")


def whole(value: Mapping[str, Any], name: str, *, least: int = 0) -> None:
    """A whole number. Raises ValueError."""
    found = value[name]
    if type(found) is not int or found < least:
        raise ValueError(f"{name} is {found!r}, no whole number from {least}")


def number(value: Mapping[str, Any], name: str, *, positive: bool = False) -> None:
    """A finite number, not below 0, or above it. Raises ValueError."""
    _number(name, value[name], positive=positive)


def optional(value: Mapping[str, Any], name: str) -> None:
    """A finite number, not below 0; or nothing. Raises ValueError."""
    if value.get(name) is not None:
        _number(name, value[name])


def numbers(value: Mapping[str, Any], name: str) -> None:
    """A list of finite numbers, none below 0; where there is none, nothing. Raises ValueError."""
    found = value.get(name, [])
    if not isinstance(found, list | tuple):
        raise ValueError(f"{name} is {found!r}, no list of numbers")
    for one in found:
        _number(name, one)


def text(value: Mapping[str, Any], name: str) -> None:
    """A text. Raises ValueError."""
    if not isinstance(value[name], str):
        raise ValueError(f"{name} is {value[name]!r}, no text")


def named(value: Mapping[str, Any], name: str) -> str:
    """A text that is not empty: what configs and builds are called. Raises ValueError."""
    found = value[name]
    if not isinstance(found, str) or not found:
        raise ValueError(f"{name} is {found!r}, no name")
    return found


def check_ab(value: Mapping[str, Any]) -> None:
    """How builds took turns, as any version wrote it. Raises KeyError for a field that is missing, ValueError for one that cannot be."""
    for name in ("rounds", "passes"):
        whole(value, name, least=1)
    whole({"configs": 1, **value}, "configs")
    alpha = {"alpha": 0.001, **value}
    number(alpha, "alpha", positive=True)
    if alpha["alpha"] >= 1:
        raise ValueError(f"alpha is {alpha['alpha']!r}, no error rate below 1")
    for cell in value.get("headline", ()):
        named(cell, "config")
        whole(cell, "context_tokens", least=1)
        whole(cell, "concurrency", least=1)
        text(cell, "workload")
        number(cell, "temperature")


def check_round(value: Mapping[str, Any]) -> None:
    """A round as it was written by any version. Raises KeyError for a field that is missing, ValueError for one that cannot be."""
    for name in ("context_tokens", "concurrency", "requests", "tokens"):
        whole(value, name, least=1)
    whole(value, "number")
    for name in ("again", "tokens_after_end"):
        whole({name: 0, **value}, name)
    number(value, "wall_s", positive=True)
    number(value, "temperature")
    for name in ("ttft_s", "time_per_token_s", "latency_s", "chunk_gap_s"):
        numbers(value, name)
    for name in _OPTIONAL:
        optional(value, name)
    named(value, "config")
    text(value, "workload")
    for name in ("sampling", "cache", "prompts"):
        text({name: "", **value}, name)
    if value.get("build") is not None:
        named(value, "build")


def check_gate(value: Mapping[str, Any]) -> None:
    """A gate's outcome as reports show it. Raises KeyError for a field that is missing, ValueError for one that cannot be."""
    if value["outcome"] not in OUTCOMES:
        raise ValueError(f"outcome is {value['outcome']!r}, none of {', '.join(OUTCOMES)}")
    for name in ("what", "metric", "text", "tolerance_why"):
        text(value, name)
    for name in ("before", "now", "loss", "tolerance", "smallest_visible"):
        if type(value[name]) not in (int, float) or not math.isfinite(value[name]):
            raise ValueError(f"{name} is {value[name]!r}, no number")


def _number(name: str, found: Any, *, positive: bool = False) -> None:
    # A bool is an int for Python, and none for anybody else; whole numbers of any length are read from JSON.
    if type(found) not in (int, float) or not 0 <= found < 1e300 or (positive and found == 0):
        raise ValueError(f"{name} is {found!r}, no number {'above' if positive else 'from'} 0")
