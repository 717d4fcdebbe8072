"""Small random checkpoints: a target, a drafter and a tokenizer of any size, for tests that need no trained model."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from .arrays import F32
from .safetensors_io import write_bf16_tensors

SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<think>", "</think>", "<|mask|>")
CHAT_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n{% endif %}{% endif %}"
)


@dataclass(frozen=True, slots=True)
class TinyShape:
    """Sizes of a random checkpoint pair; ``seed`` draws its weights."""

    vocab_size: int = 320
    hidden_size: int = 32
    num_layers: int = 3
    num_heads: int = 2
    num_kv_heads: int = 1
    head_dim: int = 16
    intermediate_size: int = 48
    max_positions: int = 2048
    block_size: int = 8
    draft_layers: int = 2
    target_layer_ids: tuple[int, ...] = (0, 1)
    seed: int = 0


def write_checkpoints(path: Path, shape: TinyShape | None = None) -> tuple[Path, Path]:
    """Write ``path/target`` and ``path/draft``; returns both."""
    shape = shape or TinyShape()
    target, draft = path / "target", path / "draft"
    target.mkdir(parents=True, exist_ok=True)
    draft.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(shape.seed)
    write_tokenizer(target, shape.vocab_size)
    tensors = {"model.embed_tokens.weight": _normal(rng, shape.vocab_size, shape.hidden_size, scale=0.25)}
    tensors |= _layers(rng, shape, "model.", shape.num_layers)
    tensors["model.norm.weight"] = np.ones(shape.hidden_size, dtype=np.float32)
    write_bf16_tensors(target / "model.safetensors", tensors)
    _write_json(
        target / "config.json", _config(shape, "Qwen3ForCausalLM", shape.num_layers) | {"eos_token_id": 2}
    )
    _write_json(target / "generation_config.json", {"eos_token_id": [2, 0]})
    small = _layers(rng, shape, "", shape.draft_layers)
    small["fc.weight"] = _normal(rng, shape.hidden_size, shape.hidden_size * len(shape.target_layer_ids))
    small["hidden_norm.weight"] = np.ones(shape.hidden_size, dtype=np.float32)
    small["norm.weight"] = np.ones(shape.hidden_size, dtype=np.float32)
    write_bf16_tensors(draft / "model.safetensors", small)
    config = _config(shape, "DFlashDraftModel", shape.draft_layers) | {
        "block_size": shape.block_size,
        "num_target_layers": shape.num_layers,
        "dflash_config": {
            "mask_token_id": SPECIAL_TOKENS.index("<|mask|>"),
            "mask_token": "<|mask|>",
            "target_layer_ids": list(shape.target_layer_ids),
        },
    }
    _write_json(draft / "config.json", config)
    return target, draft


def write_tokenizer(path: Path, vocab_size: int) -> None:
    """A byte-level tokenizer without merges: special tokens, the 256 bytes, unused fillers."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    if vocab_size < len(SPECIAL_TOKENS) + len(alphabet):
        raise ValueError(
            f"a vocabulary of {vocab_size} cannot hold {len(SPECIAL_TOKENS)} markers and 256 bytes"
        )
    vocab = {token: index for index, token in enumerate([*SPECIAL_TOKENS, *alphabet])}
    for filler in range(len(vocab), vocab_size):
        vocab[f"x{filler}"] = filler
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([token for token in SPECIAL_TOKENS if "think" not in token])
    tokenizer.add_tokens(["<think>", "</think>"])
    tokenizer.save(str(path / "tokenizer.json"))
    _write_json(path / "tokenizer_config.json", {"chat_template": CHAT_TEMPLATE, "eos_token": "<|im_end|>"})


def _normal(rng: np.random.Generator, *shape: int, scale: float | None = None) -> F32:
    std = scale if scale is not None else 1.0 / np.sqrt(shape[-1])
    return (rng.standard_normal(shape) * std).astype(np.float32)


def _layers(rng: np.random.Generator, shape: TinyShape, prefix: str, count: int) -> dict[str, F32]:
    hidden, dim, inner = shape.hidden_size, shape.head_dim, shape.intermediate_size
    tensors: dict[str, F32] = {}
    for layer in range(count):
        name = f"{prefix}layers.{layer}."
        for part, rows, columns in (
            ("self_attn.q_proj", shape.num_heads * dim, hidden),
            ("self_attn.k_proj", shape.num_kv_heads * dim, hidden),
            ("self_attn.v_proj", shape.num_kv_heads * dim, hidden),
            ("self_attn.o_proj", hidden, shape.num_heads * dim),
            ("mlp.gate_proj", inner, hidden),
            ("mlp.up_proj", inner, hidden),
            ("mlp.down_proj", hidden, inner),
        ):
            tensors[f"{name}{part}.weight"] = _normal(rng, rows, columns)
        for part, size in (
            ("input_layernorm", hidden),
            ("post_attention_layernorm", hidden),
            ("self_attn.q_norm", dim),
            ("self_attn.k_norm", dim),
        ):
            tensors[f"{name}{part}.weight"] = (1.0 + 0.1 * rng.standard_normal(size)).astype(np.float32)
    return tensors


def _config(shape: TinyShape, architecture: str, layers: int) -> dict[str, object]:
    return {
        "architectures": [architecture],
        "model_type": "qwen3",
        "hidden_size": shape.hidden_size,
        "num_hidden_layers": layers,
        "num_attention_heads": shape.num_heads,
        "num_key_value_heads": shape.num_kv_heads,
        "head_dim": shape.head_dim,
        "intermediate_size": shape.intermediate_size,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "vocab_size": shape.vocab_size,
        "max_position_embeddings": shape.max_positions,
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
    }


def _write_json(path: Path, data: object) -> None:
    path.write_text(json.dumps(data, indent=2), encoding="utf-8")
