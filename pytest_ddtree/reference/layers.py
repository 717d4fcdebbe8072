"""One decoder layer's weights, fused and folded for few and cheap NumPy calls.

Folding (exact in real arithmetic): the norm's weight and its sqrt(size) go into the product that follows it; the
attention scale goes into the query norm; gate and up are negated so that silu(g) * u = (-g)(-u) / (1 + exp(-g))
needs no extra negation.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .arena import Arena
from .arrays import F32
from .checkpoint import DecoderConfig
from .linear import Linear
from .numerics import Numerics
from .rope import pair_order


@dataclass(frozen=True, slots=True)
class LayerWeights:
    qkv: Linear
    """Input [rows, hidden] divided by its root of squares; output q, k, v side by side."""
    qk_norm: F32
    """[query heads + kv heads, 1, head_dim]: norm weights, with sqrt(head_dim) and the attention scale."""
    o: Linear
    gate: Linear
    up: Linear
    """Both negated, see :func:`swiglu`."""
    down: Linear


def _heads_paired(weight: F32, head_dim: int) -> F32:
    """Permute the output channels of a [heads * head_dim, inputs] projection pairwise."""
    order = pair_order(head_dim)
    return weight.reshape(-1, head_dim, weight.shape[1])[:, order].reshape(weight.shape)


def layer_weights(
    tensors: dict[str, F32], prefix: str, config: DecoderConfig, numerics: Numerics, arena: Arena
) -> LayerWeights:
    """Fuse the tensors named ``prefix + part + '.weight'``."""

    def get(part: str) -> F32:
        return tensors[f"{prefix}{part}.weight"]

    root = np.float32(np.sqrt(config.hidden_size))
    attn_norm = (get("input_layernorm") * root)[:, None]
    qkv = np.concatenate(
        [
            _heads_paired(get("self_attn.q_proj"), config.head_dim),
            _heads_paired(get("self_attn.k_proj"), config.head_dim),
            get("self_attn.v_proj"),
        ]
    ).T
    mlp_norm = (get("post_attention_layernorm") * root)[:, None]
    return LayerWeights(
        qkv=Linear(qkv * attn_norm, numerics, arena),
        qk_norm=qk_norm_weights(get("self_attn.q_norm"), get("self_attn.k_norm"), config)[:, None],
        o=Linear(get("self_attn.o_proj").T, numerics, arena),
        gate=Linear(-(get("mlp.gate_proj").T * mlp_norm), numerics, arena),
        up=Linear(-(get("mlp.up_proj").T * mlp_norm), numerics, arena),
        down=Linear(get("mlp.down_proj").T, numerics, arena),
    )


def qk_norm_weights(q_norm: F32, k_norm: F32, config: DecoderConfig) -> F32:
    """Norm weights of all query and key heads, [heads + kv heads, head_dim], channels paired.

    sqrt(head_dim) comes from dividing by the root of the sum instead of the mean; the query's also carries the
    attention scale head_dim ** -0.5, which cancels it.
    """
    order = pair_order(config.head_dim)
    query = np.repeat(q_norm[order][None], config.num_heads, axis=0)
    key = np.repeat((k_norm[order] * np.float32(np.sqrt(config.head_dim)))[None], config.num_kv_heads, axis=0)
    return np.ascontiguousarray(np.concatenate([query, key]), dtype=np.float32)


def inverse_norm(x: F32, sums: F32, eps_times_size: float, out: F32) -> None:
    """out = x / sqrt(sum of squares over the last axis + eps * size); ``sums`` is scratch of x's leading shape."""
    np.vecdot(x, x, out=sums)
    np.add(sums, eps_times_size, out=sums)
    np.sqrt(sums, out=sums)
    np.divide(x, sums[..., None], out=out)


def swiglu(gate: F32, up: F32) -> F32:
    """silu(gate) * up of the negated gate and up; works in place, returns ``up``."""
    np.multiply(up, gate, out=up)
    np.exp(gate, out=gate)
    np.add(gate, 1.0, out=gate)
    return np.divide(up, gate, out=up)
