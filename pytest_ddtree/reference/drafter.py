"""The DFlash drafter: one pass predicts a whole block of tokens.

Context features of the target (several layers' residual streams, through ``fc`` and ``hidden_norm``) serve every
drafter layer as keys and values of the processed positions. The block is the last token and mask tokens; its rows see
the context inside the window and each other, in both directions.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .arena import Arena
from .arrays import F32, I64
from .attention import SAFE_SCORE, plan_attention
from .checkpoint import DraftCheckpoint
from .kv_pool import KVPool, places
from .layers import inverse_norm, qk_norm_weights
from .linear import Linear
from .model import Target
from .numerics import Numerics
from .rope import pair_order
from .spans import RowSpan
from .stack import DecoderStack
from .workspace import Workspace


class Drafter:
    """Weights and scratch memory of the drafter; embedding, head and rotations are the target's."""

    def __init__(self, checkpoint: DraftCheckpoint, target: Target, numerics: Numerics) -> None:
        self.config = checkpoint.config
        decoder = self.config.decoder
        tensors = checkpoint.tensors
        self.numerics = numerics
        self._target = target
        self.arena = arena = Arena()
        self._stack = DecoderStack(tensors, "", decoder, numerics, arena)
        self._bounded = self._stack.largest_score <= SAFE_SCORE
        root = np.float32(np.sqrt(decoder.hidden_size))
        self._fc = Linear(tensors["fc.weight"].T, numerics, arena)
        self._hidden_norm = tensors["hidden_norm.weight"] * root
        self._norm = tensors["norm.weight"] * root
        order = pair_order(decoder.head_dim)
        columns: list[F32] = []
        key_norms: list[F32] = []
        for index in range(decoder.num_layers):
            prefix = f"layers.{index}.self_attn."
            key = tensors[f"{prefix}k_proj.weight"]
            key = key.reshape(decoder.num_kv_heads, decoder.head_dim, -1)[:, order].reshape(key.shape)
            columns += [key, tensors[f"{prefix}v_proj.weight"]]
            norms = qk_norm_weights(
                tensors[f"{prefix}q_norm.weight"], tensors[f"{prefix}k_norm.weight"], decoder
            )
            key_norms.append(norms[decoder.num_heads :])
        self._context = Linear(np.concatenate(columns).T, numerics, arena)
        self._key_norms = np.stack(key_norms)
        self._eps = decoder.rms_norm_eps * decoder.hidden_size
        self._head_eps = decoder.rms_norm_eps * decoder.head_dim
        self._mask_row = target.embedding[self.config.mask_token_id]
        self._work = Workspace()

    def add_context(self, features: F32, positions: I64, slots: I64, pool: KVPool) -> None:
        """Turn the target's features of processed tokens into keys and values of all drafter layers.

        features: [rows, len(target_layer_ids) * hidden]; positions and slots: [rows].
        """
        config = self.config.decoder
        rows, kv, dim = len(features), config.num_kv_heads, config.head_dim
        if not rows:
            return
        mixed = self._fc(features, np.empty((rows, config.hidden_size), dtype=np.float32))
        inverse_norm(mixed, np.empty(rows, dtype=np.float32), self._eps, mixed)
        np.multiply(mixed, self._hidden_norm, out=mixed)
        self.numerics.round(mixed)
        flat = self._context(mixed, np.empty((rows, self._context.outputs), dtype=np.float32))
        projected = flat.reshape(rows, config.num_layers, 2, kv, dim)
        keys = projected[:, :, 0]
        inverse_norm(keys, np.empty(keys.shape[:-1], dtype=np.float32), self._head_eps, keys)
        np.multiply(keys, self._key_norms, out=keys)
        pairs = keys.view(np.complex64)
        np.multiply(pairs, self._target.rotations[positions][:, None, None, :], out=pairs)
        self.numerics.round(keys)
        where = places(slots)
        for index in range(config.num_layers):
            pool.write(index, where, keys[:, index], projected[:, index, 1])

    def draft(
        self, last_tokens: I64, starts: I64, spans: Sequence[RowSpan], pool: KVPool, *, block_size: int
    ) -> F32:
        """Logits of the block's positions 1 .. block_size - 1, shape [requests, block_size - 1, vocab].

        last_tokens and starts: [requests], the token that is known but not processed and its position. Each span has
        block_size rows; its context is what the window leaves of the request's processed positions.
        """
        work = self._work
        work.mark()
        count, hidden = len(last_tokens), self.config.decoder.hidden_size
        x = work.share("x", (count * block_size, hidden))
        blocks = x.reshape(count, block_size, hidden)
        blocks[:, 0] = self._target.embedding[last_tokens]
        blocks[:, 1:] = self._mask_row
        steps = np.arange(block_size)
        positions = steps + starts[0] if count == 1 else (starts[:, None] + steps).reshape(-1)
        kernels = plan_attention(
            spans, [None] * count, pool, self.config.decoder, self.numerics, work, bounded=self._bounded
        )
        self._stack.run(x, self._target.rotations[positions][:, None, :], kernels, work)
        masked = np.ascontiguousarray(blocks[:, 1:]).reshape(-1, hidden)
        inverse_norm(masked, np.empty(len(masked), dtype=np.float32), self._eps, masked)
        np.multiply(masked, self._norm, out=masked)
        self.numerics.round(masked)
        return self._target.normed_logits(masked).reshape(count, block_size - 1, -1)
