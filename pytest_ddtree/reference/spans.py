"""The rows of one request in a pass, and what attention is to a pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from .arrays import F32
from .slots import Extent


@dataclass(frozen=True, slots=True)
class RowSpan:
    """The rows of one request in a pass.

    ``context`` are the extents of the tokens before the rows, ``own`` those of the rows themselves where their keys
    are in the pool before attention reads them (long prompt pieces need them, draft trees gain by them).
    """

    begin: int
    rows: int
    context: Sequence[Extent]
    own: Sequence[Extent] = ()

    @property
    def past(self) -> int:
        return sum(end - begin for begin, end in self.context)


class Kernel(Protocol):
    """Attention of some rows of one pass."""

    def bind(self, queries: F32, keys: F32, values: F32, out: F32) -> None:
        """Name the arrays of all rows that every layer fills anew and, for ``out``, reads."""

    def __call__(self, layer: int) -> None:
        """Mix the layer's values."""
