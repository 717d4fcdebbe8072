"""How numbers are rounded: not at all (float32), or coarsely, as a bfloat16 GPU kernel would.

``bf16`` rounds every activation and the logits to bfloat16 and splits the inner dimension of matrix products into
parts whose partial sums are rounded too, the number of parts depending on the number of rows. That is what makes
healthy GPU servers disagree with themselves at another batch size: kernels choose their arithmetic by the number of
rows (docs/reference-server.md has figures beside those of a GPU server).
"""

from __future__ import annotations

from typing import Protocol

import numpy as np

from .arrays import F32

BF16_DROPPED_BITS = 16


class Numerics(Protocol):
    name: str

    @property
    def exact(self) -> bool:
        """True when nothing is rounded, so that callers may skip the calls."""

    def round(self, values: F32) -> None:
        """Round activations, logits or the partial sums of a split product in place."""

    def split(self, rows: int) -> int:
        """Into how many parts the inner dimension of a product with this many rows is split."""


class Float32:
    """Plain float32; nothing is rounded beyond what the arithmetic does."""

    name = "f32"
    exact = True

    def round(self, values: F32) -> None:
        return None

    def split(self, rows: int) -> int:
        return 1


class BFloat16:
    """Activations, partial sums and logits in bfloat16."""

    name = "bf16"
    exact = False

    def round(self, values: F32) -> None:
        round_bits(values, BF16_DROPPED_BITS)

    def split(self, rows: int) -> int:
        if rows <= 2:
            return 4
        if rows <= 16:
            return 3
        return 2 if rows <= 64 else 1


def round_bits(values: F32, dropped: int) -> None:
    """Drop the lowest ``dropped`` bits of float32 values, to nearest, ties to even; in place, also on views.

    16 leaves bfloat16.
    """
    bits = values.view(np.uint32)
    odd = (bits >> np.uint32(dropped)) & np.uint32(1)
    odd += np.uint32((1 << (dropped - 1)) - 1)
    np.add(bits, odd, out=bits)
    np.bitwise_and(bits, np.uint32(0xFFFFFFFF << dropped & 0xFFFFFFFF), out=bits)


def make_numerics(name: str) -> Numerics:
    if name == "f32":
        return Float32()
    if name == "bf16":
        return BFloat16()
    raise ValueError(f"numerics {name!r} is unknown; choose f32 or bf16")
