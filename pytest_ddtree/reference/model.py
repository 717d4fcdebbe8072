"""The target: a Qwen3 decoder over rows of many requests at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from .arena import Arena
from .arrays import F32, I64
from .attention import SAFE_SCORE, plan_attention
from .checkpoint import TargetCheckpoint
from .kv_pool import KVPool, places
from .layers import inverse_norm
from .linear import Linear
from .numerics import Numerics
from .rope import rotation_table
from .spans import RowSpan
from .stack import DecoderStack
from .workspace import Workspace


@dataclass(frozen=True, slots=True)
class Rows:
    """The rows of one forward pass: tokens, positions and slots are [rows]; one span and mask per request."""

    tokens: I64
    positions: I64
    slots: I64
    spans: Sequence[RowSpan]
    masks: Sequence[F32 | None]


class Target:
    """Weights, rotation table and scratch memory of the target model.

    Not safe for use by several threads: one engine thread owns it.
    """

    def __init__(self, checkpoint: TargetCheckpoint, numerics: Numerics, *, positions: int) -> None:
        self.config = checkpoint.config
        decoder = self.config.decoder
        self.numerics = numerics
        self.arena = arena = Arena()
        tensors = checkpoint.tensors
        self.embedding = tensors["model.embed_tokens.weight"]
        head = self.embedding if self.config.tie_word_embeddings else tensors["lm_head.weight"]
        self.parameters = sum(tensor.size for tensor in tensors.values())
        self._stack = DecoderStack(tensors, "model.", decoder, numerics, arena)
        self._bounded = self._stack.largest_score <= SAFE_SCORE
        self._final_norm = tensors["model.norm.weight"] * np.float32(np.sqrt(decoder.hidden_size))
        self._head = Linear(head.T, numerics, arena)
        self.rotations = rotation_table(positions, decoder.head_dim, decoder.rope_theta)
        self._eps = decoder.rms_norm_eps * decoder.hidden_size
        self._work = Workspace()

    def forward(self, rows: Rows, pool: KVPool, *, capture: Sequence[int] = ()) -> tuple[F32, F32 | None]:
        """Run all rows, store their keys and values, return (residual stream, captured features).

        The residual stream is [rows, hidden], before the final norm; features are [rows, len(capture) * hidden], the
        residual stream behind each captured layer, side by side. Both live in scratch memory until the next pass.
        """
        decoder, work = self.config.decoder, self._work
        work.mark()
        count, hidden = len(rows.tokens), decoder.hidden_size
        x = work.share("x", (count, hidden))
        np.take(self.embedding, rows.tokens, axis=0, out=x)
        # Nobody reads the rows' own keys from the pool in this pass: then one call stores those of all layers.
        kept: F32 | None = None
        store: Callable[[int, F32, F32], None] | None = None
        if any(span.own for span in rows.spans):
            where = places(rows.slots)

            def store(layer: int, keys: F32, values: F32) -> None:
                pool.write(layer, where, keys, values)
        else:
            kept = work.share("kept", (decoder.num_layers, 2 * decoder.num_kv_heads, count, decoder.head_dim))
        features = work.share("features", (count, len(capture) * hidden)) if capture else None

        def behind(layer: int, stream: F32) -> None:
            if features is not None and layer in capture:
                at = capture.index(layer) * hidden
                features[:, at : at + hidden] = stream

        self._stack.run(
            x,
            self.rotations[rows.positions][:, None, :],
            plan_attention(rows.spans, rows.masks, pool, decoder, self.numerics, work, bounded=self._bounded),
            work,
            store=store,
            keep=kept,
            behind=behind if capture else None,
        )
        if kept is not None:
            pool.write_all(rows.slots, kept[:, : decoder.num_kv_heads], kept[:, decoder.num_kv_heads :])
        return x, features

    def logits(self, residual: F32) -> F32:
        """Logits [rows, vocab] of residual rows [rows, hidden]; a fresh array."""
        normed = np.empty(residual.shape, dtype=np.float32)
        inverse_norm(residual, np.empty(len(residual), dtype=np.float32), self._eps, normed)
        np.multiply(normed, self._final_norm, out=normed)
        self.numerics.round(normed)
        return self.normed_logits(normed)

    def normed_logits(self, normed: F32) -> F32:
        """Logits of rows that are normed already (the drafter brings its own norm)."""
        return self._head(normed, np.empty((len(normed), self._head.outputs), dtype=np.float32))
