"""A run of decoder layers over rows, shared by the target and the drafter."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from .arena import Arena
from .arrays import C64, F32
from .checkpoint import DecoderConfig
from .layers import inverse_norm, layer_weights, swiglu
from .numerics import Numerics
from .spans import Kernel
from .workspace import Workspace


class DecoderStack:
    """Qwen3 decoder layers; attention and key-value storage come from the caller."""

    def __init__(
        self, tensors: dict[str, F32], prefix: str, config: DecoderConfig, numerics: Numerics, arena: Arena
    ) -> None:
        self.config = config
        self._numerics = numerics
        self._layers = [
            layer_weights(tensors, f"{prefix}layers.{index}.", config, numerics, arena)
            for index in range(config.num_layers)
        ]
        heads = config.num_heads
        # A normed head is a unit vector times its weights and a rotation keeps lengths, which bounds every score.
        self.largest_score = max(
            float(np.abs(layer.qk_norm[:heads]).max() * np.abs(layer.qk_norm[heads:]).max())
            for layer in self._layers
        )
        self._eps = config.rms_norm_eps * config.hidden_size
        self._head_eps = config.rms_norm_eps * config.head_dim

    def run(
        self,
        x: F32,
        turn: C64,
        kernels: Sequence[Kernel],
        work: Workspace,
        *,
        store: Callable[[int, F32, F32], None] | None = None,
        keep: F32 | None = None,
        behind: Callable[[int, F32], None] | None = None,
    ) -> None:
        """Update the residual stream x [rows, hidden] in place.

        turn: [rows, 1, head_dim // 2] rotations. ``store(layer, keys, values)`` runs before a layer's attention,
        ``behind(layer, x)`` after the layer. ``keep`` [layers, 2 * kv heads, rows, head_dim] takes all keys and values.
        """
        config = self.config
        rows, hidden = x.shape
        heads, kv, dim, inner = (
            config.num_heads,
            config.num_kv_heads,
            config.head_dim,
            config.intermediate_size,
        )
        rnd = None if self._numerics.exact else self._numerics.round
        normed = work.share("normed", (rows, hidden))
        sums = work.share("sums", (rows,))
        total = heads + 2 * kv
        qkv = work.share("qkv", (rows, total * dim))
        # Head by head in memory where the product writes it so: then attention takes a head's rows as they are.
        by_head = self._layers[0].qkv.has_blocks(dim)
        parts = qkv.reshape(total, rows, dim) if by_head else qkv.reshape(rows, total, dim).swapaxes(0, 1)
        qk = parts[: heads + kv]
        queries, keys = qk[:heads].swapaxes(0, 1), qk[heads:].swapaxes(0, 1)
        values = parts[heads + kv :].swapaxes(0, 1)
        pairs, turn = qk.view(np.complex64), turn.swapaxes(0, 1)
        head_sums = work.share("head_sums", (heads + kv, rows))
        mixed = work.share("mixed", (rows, heads * dim))
        mixed_heads = mixed.reshape(rows, heads, dim)
        gate, up = work.share("gate", (rows, inner)), work.share("up", (rows, inner))
        delta = work.share("delta", (rows, hidden))
        first = self._layers[0]
        qkv_blocks = parts if by_head else first.qkv.blocks_of(qkv)
        o_blocks, down_blocks = first.o.blocks_of(delta), first.down.blocks_of(delta)
        gate_blocks, up_blocks = first.gate.blocks_of(gate), first.up.blocks_of(up)
        kept = parts[heads:]
        for kernel in kernels:
            kernel.bind(queries, keys, values, mixed_heads)
        for index, layer in enumerate(self._layers):
            inverse_norm(x, sums, self._eps, normed)
            if rnd is not None:
                rnd(normed)
            layer.qkv.into(normed, qkv_blocks)
            inverse_norm(qk, head_sums, self._head_eps, qk)
            np.multiply(qk, layer.qk_norm, out=qk)
            np.multiply(pairs, turn, out=pairs)
            if rnd is not None:
                rnd(qk)
            if store is not None:
                store(index, keys, values)
            if keep is not None:
                keep[index] = kept
            for kernel in kernels:
                kernel(index)
            if rnd is not None:
                rnd(mixed)
            layer.o.into(mixed, o_blocks)
            np.add(x, delta, out=x)
            if rnd is not None:
                rnd(x)
            inverse_norm(x, sums, self._eps, normed)
            if rnd is not None:
                rnd(normed)
            layer.gate.into(normed, gate_blocks)
            layer.up.into(normed, up_blocks)
            activated = swiglu(gate, up)
            if rnd is not None:
                rnd(activated)
            layer.down.into(activated, down_blocks)
            np.add(x, delta, out=x)
            if rnd is not None:
                rnd(x)
            if behind is not None:
                behind(index, x)
