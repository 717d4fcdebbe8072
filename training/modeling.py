"""PyTorch definitions of the reference target (Qwen3 architecture) and of its DFlash drafter.

Parameter names equal the tensor names of the exported checkpoints, so `state_dict()` is the checkpoint.
Shapes in comments: B rows, S positions, H hidden, A anchors a row, K block size, D head size.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Sizes shared by target and drafter; the defaults are those of the shipped target."""

    vocab_size: int = 4096
    hidden_size: int = 192
    num_hidden_layers: int = 16
    num_attention_heads: int = 4
    num_key_value_heads: int = 2
    head_dim: int = 64
    intermediate_size: int = 448
    max_position_embeddings: int = 16384
    rope_theta: float = 1_000_000.0
    rms_norm_eps: float = 1e-6
    dropout: float = 0.0
    experts: int = 0
    experts_per_token: int = 2


@dataclass(frozen=True, slots=True)
class DraftConfig:
    """What a DFlash drafter has beside the sizes of its layers."""

    model: ModelConfig = field(default_factory=lambda: ModelConfig(num_hidden_layers=2))
    block_size: int = 8
    num_target_layers: int = 16
    mask_token_id: int = 5
    target_layer_ids: tuple[int, ...] = (2, 6, 10, 12, 14)


def rope_tables(cfg: ModelConfig, device: torch.device | str) -> tuple[Tensor, Tensor]:
    """cos and sin of shape [max_position_embeddings, head_dim], half-split layout."""
    exponents = torch.arange(0, cfg.head_dim, 2, dtype=torch.float64) / cfg.head_dim
    angles = torch.outer(torch.arange(cfg.max_position_embeddings).double(), cfg.rope_theta**-exponents)
    angles = torch.cat([angles, angles], dim=-1)
    return angles.cos().float().to(device), angles.sin().float().to(device)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary embedding of x [..., S, D] by cos and sin broadcastable to it."""
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat([-second, first], dim=-1) * sin


class RMSNorm(nn.Module):
    """w * x / sqrt(mean(x^2) + eps), computed in float32."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        x32 = x.float()
        return (x32 * torch.rsqrt(x32.square().mean(-1, keepdim=True) + self.eps)).to(x.dtype) * self.weight


class Attention(nn.Module):
    """Projections and head norms; how keys are collected is the caller's business."""

    def __init__(self, cfg: ModelConfig) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.dim = cfg.num_attention_heads, cfg.num_key_value_heads, cfg.head_dim
        self.q_proj = nn.Linear(cfg.hidden_size, self.heads * self.dim, bias=False)
        self.k_proj = nn.Linear(cfg.hidden_size, self.kv_heads * self.dim, bias=False)
        self.v_proj = nn.Linear(cfg.hidden_size, self.kv_heads * self.dim, bias=False)
        self.o_proj = nn.Linear(self.heads * self.dim, cfg.hidden_size, bias=False)
        self.q_norm = RMSNorm(self.dim, cfg.rms_norm_eps)
        self.k_norm = RMSNorm(self.dim, cfg.rms_norm_eps)

    def qkv(self, x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """x [B, S, H] -> q [B, heads, S, D], k and v [B, kv_heads, S, D], one matrix product."""
        weight = torch.cat([self.q_proj.weight, self.k_proj.weight, self.v_proj.weight])
        out = F.linear(x, weight).unflatten(-1, (self.heads + 2 * self.kv_heads, self.dim)).transpose(1, 2)
        q, k, v = out.split([self.heads, self.kv_heads, self.kv_heads], dim=1)
        return rotate(self.q_norm(q), cos, sin).to(v.dtype), rotate(self.k_norm(k), cos, sin).to(v.dtype), v

    def kv(self, x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values alone, for context features."""
        weight = torch.cat([self.k_proj.weight, self.v_proj.weight])
        out = F.linear(x, weight).unflatten(-1, (2 * self.kv_heads, self.dim)).transpose(1, 2)
        k, v = out.split([self.kv_heads, self.kv_heads], dim=1)
        return rotate(self.k_norm(k), cos, sin).to(v.dtype), v

    def merge(self, out: Tensor) -> Tensor:
        """[B, heads, S, D] -> [B, S, H]."""
        return self.o_proj(out.transpose(1, 2).flatten(2))


class MLP(nn.Module):
    def __init__(self, cfg: ModelConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(cfg.hidden_size, cfg.intermediate_size, bias=False)
        self.up_proj = nn.Linear(cfg.hidden_size, cfg.intermediate_size, bias=False)
        self.down_proj = nn.Linear(cfg.intermediate_size, cfg.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        gate, up = F.linear(x, torch.cat([self.gate_proj.weight, self.up_proj.weight])).chunk(2, dim=-1)
        return self.down_proj(F.silu(gate) * up)


class Experts(nn.Module):
    """A mixture of MLPs of size `intermediate_size`: softmax over all experts, the best `experts_per_token` of
    them weighed by their renormalised probabilities. All are computed and the others weighed by 0."""

    def __init__(self, cfg: ModelConfig) -> None:
        super().__init__()
        self.chosen = cfg.experts_per_token
        self.gate = nn.Linear(cfg.hidden_size, cfg.experts, bias=False)
        self.experts = nn.ModuleList(MLP(cfg) for _ in range(cfg.experts))
        self.imbalance: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        chances = self.gate(x).float().softmax(-1)
        top = chances.topk(self.chosen, dim=-1)
        weights = torch.zeros_like(chances).scatter(-1, top.indices, top.values)
        if self.training:
            used = (weights > 0).float().flatten(0, -2).mean(0) / self.chosen
            self.imbalance = len(self.experts) * (used * chances.flatten(0, -2).mean(0)).sum()
        weights = (weights / weights.sum(-1, keepdim=True)).to(x.dtype)
        gate = F.linear(x, torch.cat([e.gate_proj.weight for e in self.experts]))  # type: ignore[union-attr]
        up = F.linear(x, torch.cat([e.up_proj.weight for e in self.experts]))  # type: ignore[union-attr]
        inner = (F.silu(gate) * up).unflatten(-1, (len(self.experts), -1)) * weights[..., None]
        down = torch.cat([e.down_proj.weight for e in self.experts], dim=1)  # type: ignore[union-attr]
        return F.linear(inner.flatten(-2), down)


class Layer(nn.Module):
    """One pre-norm decoder layer; the same parameters serve target and drafter."""

    def __init__(self, cfg: ModelConfig) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(cfg.hidden_size, cfg.rms_norm_eps)
        self.self_attn = Attention(cfg)
        self.post_attention_layernorm = RMSNorm(cfg.hidden_size, cfg.rms_norm_eps)
        self.mlp = Experts(cfg) if cfg.experts else MLP(cfg)
        self.dropout = cfg.dropout

    def _drop(self, x: Tensor) -> Tensor:
        return F.dropout(x, self.dropout, self.training) if self.dropout else x

    def finish(self, x: Tensor, attended: Tensor) -> Tensor:
        """Residual, MLP, residual."""
        x = x + self._drop(self.self_attn.merge(attended))
        return x + self._drop(self.mlp(self.post_attention_layernorm(x)))

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Causal attention over x itself."""
        q, k, v = self.self_attn.qkv(self.input_layernorm(x), cos, sin)
        return self.finish(x, F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True))

    def draft(self, x: Tensor, context: Tensor, rope: tuple[Tensor, ...], mask: Tensor) -> Tensor:
        """x [B, A*K, H] attends to the context features [B, S, H] and to its own block, as `mask` allows."""
        cos_ctx, sin_ctx, cos_blk, sin_blk = rope
        q, k, v = self.self_attn.qkv(self.input_layernorm(x), cos_blk, sin_blk)
        k_ctx, v_ctx = self.self_attn.kv(context, cos_ctx, sin_ctx)
        repeat = self.self_attn.heads // self.self_attn.kv_heads
        keys = torch.cat([k_ctx.to(k.dtype), k], dim=2).repeat_interleave(repeat, dim=1)
        values = torch.cat([v_ctx.to(v.dtype), v], dim=2).repeat_interleave(repeat, dim=1)
        return self.finish(x, F.scaled_dot_product_attention(q, keys, values, attn_mask=mask))

    def step(
        self, x: Tensor, cos: Tensor, sin: Tensor, cache: tuple[Tensor, Tensor], pos: Tensor, hidden: Tensor
    ) -> Tensor:
        """One decoding position for every row. x [B, 1, H]; cache k and v [B, kv_heads, T, D] are written at
        pos [1]; hidden [T] is 0 for visible positions and -inf for later ones."""
        attn = self.self_attn
        q, k, v = attn.qkv(self.input_layernorm(x), cos, sin)
        size = hidden.numel()
        cache[0].index_copy_(2, pos, k)
        cache[1].index_copy_(2, pos, v)
        q = q.reshape(q.shape[0], attn.kv_heads, -1, attn.dim)
        scores = (q @ cache[0][:, :, :size].transpose(2, 3)).float() * attn.dim**-0.5 + hidden
        out = scores.softmax(-1).to(v.dtype) @ cache[1][:, :, :size]
        return self.finish(x, out.reshape(out.shape[0], attn.heads, 1, attn.dim))


class Body(nn.Module):
    def __init__(self, cfg: ModelConfig) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(cfg.vocab_size, cfg.hidden_size)
        self.layers = nn.ModuleList(Layer(cfg) for _ in range(cfg.num_hidden_layers))
        self.norm = RMSNorm(cfg.hidden_size, cfg.rms_norm_eps)


class Target(nn.Module):
    """Decoder-only language model with tied embedding and head."""

    cos: Tensor
    sin: Tensor

    def __init__(self, cfg: ModelConfig) -> None:
        super().__init__()
        self.cfg = cfg
        self.model = Body(cfg)
        cos, sin = rope_tables(cfg, "cpu")
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)
        initialise(self, cfg.num_hidden_layers)

    def forward(self, ids: Tensor, collect: tuple[int, ...] = ()) -> tuple[Tensor, Tensor | None]:
        """ids [B, S] -> final normed hidden states [B, S, H] and, if asked, the outputs of the layers in
        `collect` joined along the last axis [B, S, len(collect) * H]."""
        size = ids.shape[1]
        cos, sin = self.cos[:size], self.sin[:size]
        x = self.model.embed_tokens(ids)
        if torch.is_autocast_enabled(x.device.type):
            x = x.bfloat16()  # the residual stream too: training is bound by memory traffic
        features = []
        for index, layer in enumerate(self.model.layers):
            x = layer(x, cos, sin)
            if index in collect:
                features.append(x)
        return self.model.norm(x), torch.cat(features, dim=-1) if features else None

    def imbalance(self) -> Tensor | None:
        """Mean over the layers of experts x sum(share of the tokens x mean probability) of the last training
        pass: 1 when all experts are used alike. None without experts."""
        terms = [layer.mlp.imbalance for layer in self.model.layers if isinstance(layer.mlp, Experts)]
        return torch.stack(terms).mean() if terms else None

    def logits(self, hidden: Tensor) -> Tensor:
        return F.linear(hidden, self.model.embed_tokens.weight)


class Drafter(nn.Module):
    """DFlash drafter: fills the mask positions of a block in one pass. It has no embedding and no head."""

    def __init__(self, cfg: DraftConfig) -> None:
        super().__init__()
        self.cfg = cfg
        size = cfg.model.hidden_size
        self.layers = nn.ModuleList(Layer(cfg.model) for _ in range(cfg.model.num_hidden_layers))
        self.fc = nn.Linear(size * len(cfg.target_layer_ids), size, bias=False)
        self.hidden_norm = RMSNorm(size, cfg.model.rms_norm_eps)
        self.norm = RMSNorm(size, cfg.model.rms_norm_eps)
        initialise(self, cfg.model.num_hidden_layers)

    def forward(
        self, target: Target, features: Tensor, tokens: Tensor, anchors: Tensor, window: Tensor
    ) -> Tensor:
        """Draft a block at every anchor of every row.

        features [B, S, n*H]: the target's layer outputs. tokens [B, A]: the known token at each anchor.
        anchors [B, A]: its position; the block covers anchor .. anchor + K - 1. window [B]: how many context
        positions before the anchor are visible. Returns normed hidden states [B, A, K, H]; row j of a block
        predicts the token at anchor + j; row 0 is of no use.
        """
        block = self.cfg.block_size
        rows, count = anchors.shape
        ids = torch.full((rows, count, block), self.cfg.mask_token_id, device=tokens.device)
        ids[:, :, 0] = tokens
        x = F.embedding(ids, target.model.embed_tokens.weight).flatten(1, 2)
        positions = (anchors[:, :, None] + torch.arange(block, device=anchors.device)).flatten(1)
        size = features.shape[1]
        rope = (
            target.cos[:size],
            target.sin[:size],
            target.cos[positions][:, None],
            target.sin[positions][:, None],
        )
        context = self.hidden_norm(self.fc(features))
        mask = block_mask(anchors, size, block, window)
        for layer in self.layers:
            x = layer.draft(x, context, rope, mask)  # type: ignore[operator]
        return self.norm(x).unflatten(1, (count, block))


def block_mask(anchors: Tensor, size: int, block: int, window: Tensor) -> Tensor:
    """Bool [B, 1, A*K, size + A*K]: context strictly before the anchor and inside the window, and the whole
    own block in both directions."""
    rows, count = anchors.shape
    device = anchors.device
    position = torch.arange(size, device=device)
    visible = (position < anchors[:, :, None]) & (position >= anchors[:, :, None] - window[:, None, None])
    visible = visible.repeat_interleave(block, dim=1)
    owner = torch.arange(count, device=device).repeat_interleave(block)
    own = (owner[:, None] == owner[None, :]).expand(rows, -1, -1)
    return torch.cat([visible, own], dim=2)[:, None]


def deepened(drafter: Drafter, order: tuple[int, ...]) -> Drafter:
    """A drafter with the layers `order` of another one. A layer that appears again begins as a copy that adds
    nothing to the residual stream, so that the deeper drafter begins with the same answers."""
    model = replace(drafter.cfg.model, num_hidden_layers=len(order))
    deeper = Drafter(replace(drafter.cfg, model=model)).to(drafter.fc.weight.device)
    with torch.no_grad():
        for name in ("fc", "hidden_norm", "norm"):
            getattr(deeper, name).load_state_dict(getattr(drafter, name).state_dict())
        for place, source in enumerate(order):
            layer = deeper.layers[place]
            layer.load_state_dict(drafter.layers[source].state_dict())
            if source in order[:place]:
                layer.self_attn.o_proj.weight.zero_()  # type: ignore[union-attr, operator]
                layer.mlp.down_proj.weight.zero_()  # type: ignore[union-attr, operator]
    return deeper


def initialise(module: nn.Module, layers: int) -> None:
    """Normal(0, 0.02); projections back into the residual stream are scaled down by depth."""
    for name, parameter in module.named_parameters():
        if parameter.ndim == 2:
            scale = 1 / math.sqrt(2 * layers) if name.endswith(("o_proj.weight", "down_proj.weight")) else 1.0
            nn.init.normal_(parameter, std=0.02 * scale)


def round_to_bf16(module: nn.Module) -> None:
    """Make every parameter exactly representable in bfloat16, in place."""
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(parameter.bfloat16().float())


def target_hf_config(cfg: ModelConfig) -> dict[str, Any]:
    """config.json of the target."""
    return {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": None,
        "dtype": "bfloat16",
        "eos_token_id": 2,
        "head_dim": cfg.head_dim,
        "hidden_act": "silu",
        "hidden_size": cfg.hidden_size,
        "initializer_range": 0.02,
        "intermediate_size": cfg.intermediate_size,
        "layer_types": ["full_attention"] * cfg.num_hidden_layers,
        "max_position_embeddings": cfg.max_position_embeddings,
        "max_window_layers": cfg.num_hidden_layers,
        "num_attention_heads": cfg.num_attention_heads,
        "num_hidden_layers": cfg.num_hidden_layers,
        "num_key_value_heads": cfg.num_key_value_heads,
        "pad_token_id": 0,
        "rms_norm_eps": cfg.rms_norm_eps,
        "rope_parameters": {"rope_theta": cfg.rope_theta, "rope_type": "default"},
        "rope_scaling": None,
        "rope_theta": cfg.rope_theta,
        "sliding_window": None,
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
        "use_cache": True,
        "use_sliding_window": False,
        "vocab_size": cfg.vocab_size,
    }


def moe_hf_config(cfg: ModelConfig) -> dict[str, Any]:
    """config.json of a target with experts."""
    return target_hf_config(cfg) | {
        "architectures": ["Qwen3MoeForCausalLM"],
        "model_type": "qwen3_moe",
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
        "moe_intermediate_size": cfg.intermediate_size,
        "norm_topk_prob": True,
        "num_experts": cfg.experts,
        "num_experts_per_tok": cfg.experts_per_token,
        "output_router_logits": False,
        "router_aux_loss_coef": 0.001,
        "tie_word_embeddings": False,
    }


def draft_hf_config(cfg: DraftConfig) -> dict[str, Any]:
    """config.json of the drafter."""
    return target_hf_config(cfg.model) | {
        "architectures": ["DFlashDraftModel"],
        "block_size": cfg.block_size,
        "num_target_layers": cfg.num_target_layers,
        "dflash_config": {
            "mask_token": "<|mask|>",
            "mask_token_id": cfg.mask_token_id,
            "target_layer_ids": list(cfg.target_layer_ids),
        },
    }
