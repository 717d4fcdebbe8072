"""Servers that fake their acceptance are refused, whatever kind they are of."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_ddtree.servers.errors import FakedServer


def refuse_fakes(what: str, signs: Sequence[str]) -> None:
    """Raise FakedServer when there are signs that what a server answers would not be its own."""
    if signs:
        raise FakedServer(
            f"{what} is not judged: what it answers would not be its own",
            why="; ".join(signs),
            hint="unset the variable or drop the argument",
        )
