"""Finding faults by name and putting several together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ..hooks import Hooks
from . import commit, drafting, masks, serving, walks
from .base import Fault, PlantError

MODULES = (masks, commit, walks, drafting, serving)
HOOKS = tuple(name for name in vars(Hooks) if not name.startswith("_"))


def catalogue() -> dict[str, type[Fault]]:
    """All faults by name."""
    found: dict[str, type[Fault]] = {}
    for module in MODULES:
        for value in vars(module).values():
            if isinstance(value, type) and issubclass(value, Fault) and value.__module__ == module.__name__:
                found[value.name] = value
    return dict(sorted(found.items()))


def describe() -> str:
    """The list that ``--plant list`` prints: name, argument, what it imitates."""
    lines = []
    for name, fault in catalogue().items():
        argument = f"[:{fault.takes}={fault.default}]" if fault.takes else ""
        lines.append(
            f"{name}{argument}\n    {(fault.__doc__ or '').strip().splitlines()[0]}\n    {fault.imitates}"
        )
    return "\n".join(lines)


def plant(specifications: Sequence[str]) -> Hooks:
    """Hooks with the faults NAME[:ARG][@RATE] planted; plain hooks when there are none.

    Raises:
        PlantError: an unknown name, a wrong argument or rate.
    """
    faults = [_one(text) for text in specifications]
    if not faults:
        return Hooks()
    return faults[0] if len(faults) == 1 else Chain(faults)


def _one(text: str) -> Fault:
    body, at, rate_text = text.partition("@")
    name, colon, argument = body.partition(":")
    known = catalogue()
    if name not in known:
        raise PlantError(f"--plant {name!r} is unknown; the catalogue has: {', '.join(known)}.")
    rate = 1.0
    if at:
        try:
            rate = float(rate_text)
        except ValueError:
            raise PlantError(f"--plant {text}: the rate must be a number, got {rate_text!r}.") from None
        if not 0.0 < rate <= 1.0:
            raise PlantError(f"--plant {text}: the rate must be in (0, 1], got {rate}.")
    return known[name](argument if colon else None, rate)


class Chain(Hooks):
    """Several faults in the order they were planted: each sees what the one before left."""

    def __init__(self, faults: Sequence[Fault]) -> None:
        for name in HOOKS:
            methods = [
                getattr(fault, name)
                for fault in faults
                if getattr(type(fault), name) is not getattr(Hooks, name)
            ]
            if methods:
                returns = name not in SILENT
                setattr(self, name, _fold(methods) if returns else _all(methods))


SILENT = frozenset({"started", "admitted", "aborted", "finished", "passed", "committed"})
"""Hooks that return nothing."""


def _fold(methods: Sequence[Callable[..., Any]]) -> Callable[..., Any]:
    def call(value: Any, *rest: Any, **named: Any) -> Any:
        for method in methods:
            value = method(value, *rest, **named)
        return value

    return call


def _all(methods: Sequence[Callable[..., Any]]) -> Callable[..., None]:
    def call(*rest: Any) -> None:
        for method in methods:
            method(*rest)

    return call
