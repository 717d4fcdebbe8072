"""Rotary position embedding as one complex multiplication.

Qwen3 rotates the pairs (i, i + head_dim/2). The rows of the query and key projections are permuted at load time so
that a pair is adjacent in memory; seen as complex numbers a rotation is then a multiplication by exp(i * angle).
Scores are inner products and do not change when both sides are permuted alike.
"""

from __future__ import annotations

import numpy as np

from .arrays import C64, I64


def rotation_table(positions: int, head_dim: int, theta: float) -> C64:
    """exp(i * position / theta^(2j/head_dim)), shape [positions, head_dim // 2].

    Angles are taken in float32 as the usual implementations do, so that long contexts agree with them.
    """
    exponents = np.arange(0, head_dim, 2, dtype=np.float32) / np.float32(head_dim)
    inverse = (np.float32(1.0) / np.power(np.float32(theta), exponents)).astype(np.float32)
    angles = np.arange(positions, dtype=np.float32)[:, None] * inverse[None, :]
    table = np.empty(angles.shape, dtype=np.complex64)
    table.real = np.cos(angles)
    table.imag = np.sin(angles)
    return table


def pair_order(head_dim: int) -> I64:
    """Order of the head's channels that brings channel i and i + head_dim/2 next to each other."""
    half = head_dim // 2
    return np.stack([np.arange(half), np.arange(half) + half], axis=1).reshape(-1)
