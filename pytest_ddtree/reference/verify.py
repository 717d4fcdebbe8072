"""The verification walk: which nodes of a draft tree the target agrees with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from .tree import ROOT


@dataclass(frozen=True, slots=True)
class Walk:
    """accepted: indices of the accepted nodes, root excluded, in order. bonus: the target's token behind the last."""

    accepted: tuple[int, ...]
    bonus: int

    @property
    def length(self) -> int:
        """Tokens this step emits, the bonus included."""
        return len(self.accepted) + 1


def walk(parents: Sequence[int], tokens: Sequence[int], choose: Callable[[int, int], int]) -> Walk:
    """Follow the target's own choices from the root on.

    ``choose(node, depth)`` draws the target's token behind ``node``. The child that holds it is entered; when there
    is none that token is the bonus. Lossless at any temperature, because every emitted token is the target's draw.
    """
    accepted: list[int] = []
    node = ROOT
    token = choose(node, 0)
    # Children come behind their parent, so that one pass meets the whole path.
    for child in range(1, len(parents)):
        if parents[child] == node and tokens[child] == token:
            accepted.append(child)
            node = child
            token = choose(node, len(accepted))
    return Walk(tuple(accepted), token)
