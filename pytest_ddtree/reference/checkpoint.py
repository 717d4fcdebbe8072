"""Hugging Face checkpoints of a Qwen3 target and of a DFlash drafter: configuration and tensors."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .arrays import F32
from .safetensors_io import read_tensors


class CheckpointError(ValueError):
    """A checkpoint directory that this server cannot run; the text says what is wrong and where."""


@dataclass(frozen=True, slots=True)
class DecoderConfig:
    """What both decoders need: sizes as in Hugging Face's ``config.json`` of a Qwen3 model."""

    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    rms_norm_eps: float
    rope_theta: float

    @property
    def group(self) -> int:
        """Query heads that share one key-value head."""
        return self.num_heads // self.num_kv_heads

    @property
    def kv_size(self) -> int:
        return self.num_kv_heads * self.head_dim


@dataclass(frozen=True, slots=True)
class TargetConfig:
    decoder: DecoderConfig
    vocab_size: int
    max_positions: int
    eos_token_ids: tuple[int, ...]
    tie_word_embeddings: bool
    architectures: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class DraftConfig:
    decoder: DecoderConfig
    block_size: int
    mask_token_id: int
    mask_token: str
    target_layer_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TargetCheckpoint:
    path: Path
    config: TargetConfig
    tensors: dict[str, F32]


@dataclass(frozen=True, slots=True)
class DraftCheckpoint:
    path: Path
    config: DraftConfig
    tensors: dict[str, F32]


def _read_config(path: Path) -> dict[str, Any]:
    file = path / "config.json"
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CheckpointError(f"{path} is no checkpoint: it has no config.json") from None
    except ValueError as error:
        raise CheckpointError(f"{file} is not valid JSON: {error}") from None
    if not isinstance(config, dict):
        raise CheckpointError(f"{file} must hold a JSON object")
    return config


def _decoder_config(config: dict[str, Any], path: Path) -> DecoderConfig:
    try:
        rope = config.get("rope_parameters") or {}
        heads = int(config["num_attention_heads"])
        decoder = DecoderConfig(
            hidden_size=int(config["hidden_size"]),
            num_layers=int(config["num_hidden_layers"]),
            num_heads=heads,
            num_kv_heads=int(config.get("num_key_value_heads", heads)),
            head_dim=int(config.get("head_dim") or config["hidden_size"] // heads),
            intermediate_size=int(config["intermediate_size"]),
            rms_norm_eps=float(config["rms_norm_eps"]),
            rope_theta=float(config.get("rope_theta") or rope["rope_theta"]),
        )
    except KeyError as error:
        raise CheckpointError(f"{path}/config.json lacks {error.args[0]}") from None
    if decoder.num_heads % decoder.num_kv_heads:
        raise CheckpointError(
            f"{path}/config.json: {decoder.num_heads} query heads cannot share {decoder.num_kv_heads} kv heads evenly"
        )
    return decoder


def _read_weights(path: Path) -> dict[str, F32]:
    files = sorted(path.glob("*.safetensors"))
    if not files:
        raise CheckpointError(f"{path} is no checkpoint: it has no *.safetensors file")
    tensors: dict[str, F32] = {}
    for file in files:
        tensors.update(read_tensors(file))
    return tensors


def _eos_ids(path: Path, config: dict[str, Any]) -> tuple[int, ...]:
    found = config.get("eos_token_id")
    generation = path / "generation_config.json"
    if generation.is_file():
        found = json.loads(generation.read_text(encoding="utf-8")).get("eos_token_id", found)
    if found is None:
        return ()
    return tuple(int(token) for token in found) if isinstance(found, list) else (int(found),)


def load_target(path: Path) -> TargetCheckpoint:
    """Read a Qwen3 checkpoint directory.

    Raises:
        CheckpointError: missing files or keys, or another architecture.
    """
    raw = _read_config(path)
    architectures = tuple(raw.get("architectures") or ())
    if "Qwen3ForCausalLM" not in architectures:
        raise CheckpointError(
            f"{path}/config.json names {list(architectures)}; the reference server runs Qwen3ForCausalLM only"
        )
    tensors = _read_weights(path)
    config = TargetConfig(
        decoder=_decoder_config(raw, path),
        vocab_size=int(raw["vocab_size"]),
        max_positions=int(raw.get("max_position_embeddings", 2048)),
        eos_token_ids=_eos_ids(path, raw),
        tie_word_embeddings=bool(raw.get("tie_word_embeddings", False)),
        architectures=architectures,
    )
    _require_tensors(path, tensors, config.decoder.num_layers, prefix="model.")
    return TargetCheckpoint(path, config, tensors)


def load_draft(path: Path) -> DraftCheckpoint:
    """Read a DFlash drafter checkpoint directory.

    Raises:
        CheckpointError: missing files or keys, or another architecture.
    """
    raw = _read_config(path)
    architectures = tuple(raw.get("architectures") or ())
    if "DFlashDraftModel" not in architectures:
        raise CheckpointError(
            f"{path}/config.json names {list(architectures)}; a draft model must be a DFlashDraftModel"
        )
    dflash = raw.get("dflash_config")
    if not isinstance(dflash, dict) or "target_layer_ids" not in dflash or "mask_token_id" not in dflash:
        raise CheckpointError(f"{path}/config.json needs dflash_config.mask_token_id and .target_layer_ids")
    config = DraftConfig(
        decoder=_decoder_config(raw, path),
        block_size=int(raw["block_size"]),
        mask_token_id=int(dflash["mask_token_id"]),
        mask_token=str(dflash.get("mask_token", "")),
        target_layer_ids=tuple(int(layer) for layer in dflash["target_layer_ids"]),
    )
    tensors = _read_weights(path)
    _require_tensors(path, tensors, config.decoder.num_layers, prefix="")
    for name in ("fc.weight", "hidden_norm.weight", "norm.weight"):
        if name not in tensors:
            raise CheckpointError(f"{path} lacks the tensor {name}")
    return DraftCheckpoint(path, config, tensors)


LAYER_TENSORS = (
    "input_layernorm",
    "self_attn.q_proj",
    "self_attn.k_proj",
    "self_attn.v_proj",
    "self_attn.o_proj",
    "self_attn.q_norm",
    "self_attn.k_norm",
    "post_attention_layernorm",
    "mlp.gate_proj",
    "mlp.up_proj",
    "mlp.down_proj",
)


def _require_tensors(path: Path, tensors: dict[str, F32], layers: int, *, prefix: str) -> None:
    for layer in range(layers):
        for part in LAYER_TENSORS:
            name = f"{prefix}layers.{layer}.{part}.weight"
            if name not in tensors:
                raise CheckpointError(f"{path} lacks the tensor {name}")


def check_pair(target: TargetConfig, draft: DraftConfig) -> None:
    """Refuse a drafter that was not made for this target.

    Raises:
        CheckpointError: hidden sizes differ, or a feature layer or the mask token does not exist in the target.
    """
    if draft.decoder.hidden_size != target.decoder.hidden_size:
        raise CheckpointError(
            f"the drafter's hidden size {draft.decoder.hidden_size} is not the target's {target.decoder.hidden_size}"
        )
    worst = max(draft.target_layer_ids, default=-1)
    if worst >= target.decoder.num_layers:
        raise CheckpointError(
            f"the drafter reads layer {worst}; the target has {target.decoder.num_layers} layers"
        )
    if not 0 <= draft.mask_token_id < target.vocab_size:
        raise CheckpointError(
            f"mask token {draft.mask_token_id} is outside the vocabulary of {target.vocab_size}"
        )
