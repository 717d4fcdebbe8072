"""Hugging Face checkpoints of a Qwen3 target and of a DFlash drafter: configuration and tensors."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
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


@contextmanager
def _values_of(file: Path) -> Iterator[None]:
    """Whatever is missing or of a wrong kind in a JSON file is a CheckpointError that names it."""
    try:
        yield
    except CheckpointError:
        raise
    except KeyError as error:
        raise CheckpointError(f"{file} lacks {error.args[0]}") from None
    except (ArithmeticError, AttributeError, OSError, TypeError, ValueError) as error:
        raise CheckpointError(f"{file} cannot be used: {error}") from None


def _refuse_what_is_not_computed(config: Mapping[str, Any], path: Path) -> None:
    """Settings of a Qwen3 model that change its arithmetic and that this server would pass over."""
    rope = (config.get("rope_parameters") or {}) | (config.get("rope_scaling") or {})
    kind = rope.get("rope_type", rope.get("type", "default"))
    layers = set(config.get("layer_types") or ())
    for name, value, known in (
        ("rope_type", kind, kind == "default"),
        ("attention_bias", True, not config.get("attention_bias")),
        ("hidden_act", config.get("hidden_act"), config.get("hidden_act", "silu") == "silu"),
        ("layer_types", sorted(layers), layers <= {"full_attention"}),
        ("use_sliding_window", True, not config.get("use_sliding_window")),
    ):
        if not known:
            raise CheckpointError(
                f"{path}/config.json has {name} {value}; the reference server does not compute that"
            )


def _decoder_config(config: dict[str, Any], path: Path) -> DecoderConfig:
    _refuse_what_is_not_computed(config, path)
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
    if decoder.head_dim % 2:
        raise CheckpointError(
            f"{path}/config.json: a head_dim of {decoder.head_dim} cannot be rotated in pairs"
        )
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
        try:
            tensors.update(read_tensors(file))
        except (KeyError, OSError, TypeError, ValueError, struct.error) as error:
            raise CheckpointError(f"{file} is no readable safetensors file: {error}") from None
    return tensors


def _eos_ids(path: Path, config: dict[str, Any]) -> tuple[int, ...]:
    found = config.get("eos_token_id")
    generation = path / "generation_config.json"
    if generation.is_file():
        with _values_of(generation):
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
    with _values_of(path / "config.json"):
        config = TargetConfig(
            decoder=_decoder_config(raw, path),
            vocab_size=int(raw["vocab_size"]),
            max_positions=int(raw.get("max_position_embeddings", 2048)),
            eos_token_ids=_eos_ids(path, raw),
            tie_word_embeddings=bool(raw.get("tie_word_embeddings", False)),
            architectures=architectures,
        )
    tensors = _read_weights(path)
    rows = (config.vocab_size, config.decoder.hidden_size)
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens": rows, "model.norm": rows[1:]}
    if not config.tie_word_embeddings:
        shapes["lm_head"] = rows
    _require_tensors(path, tensors, shapes | _layer_shapes(config.decoder, "model."))
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
    with _values_of(path / "config.json"):
        config = DraftConfig(
            decoder=_decoder_config(raw, path),
            block_size=int(raw["block_size"]),
            mask_token_id=int(dflash["mask_token_id"]),
            mask_token=str(dflash.get("mask_token", "")),
            target_layer_ids=tuple(int(layer) for layer in dflash["target_layer_ids"]),
        )
    tensors = _read_weights(path)
    size = config.decoder.hidden_size
    shapes = {"fc": (size, size * len(config.target_layer_ids)), "hidden_norm": (size,), "norm": (size,)}
    _require_tensors(path, tensors, shapes | _layer_shapes(config.decoder, ""))
    return DraftCheckpoint(path, config, tensors)


def _layer_shapes(config: DecoderConfig, prefix: str) -> dict[str, tuple[int, ...]]:
    """Names (without ``.weight``) and shapes of the tensors of all layers."""
    size, inner, heads = config.hidden_size, config.intermediate_size, config.num_heads * config.head_dim
    layer: dict[str, tuple[int, ...]] = {
        "input_layernorm": (size,),
        "self_attn.q_proj": (heads, size),
        "self_attn.k_proj": (config.kv_size, size),
        "self_attn.v_proj": (config.kv_size, size),
        "self_attn.o_proj": (size, heads),
        "self_attn.q_norm": (config.head_dim,),
        "self_attn.k_norm": (config.head_dim,),
        "post_attention_layernorm": (size,),
        "mlp.gate_proj": (inner, size),
        "mlp.up_proj": (inner, size),
        "mlp.down_proj": (size, inner),
    }
    return {
        f"{prefix}layers.{number}.{name}": shape
        for number in range(config.num_layers)
        for name, shape in layer.items()
    }


def _require_tensors(path: Path, tensors: dict[str, F32], shapes: Mapping[str, tuple[int, ...]]) -> None:
    for part, shape in shapes.items():
        name = f"{part}.weight"
        if name not in tensors:
            raise CheckpointError(f"{path} lacks the tensor {name}")
        if tensors[name].shape != shape:
            raise CheckpointError(
                f"{path}: the tensor {name} has the shape {tensors[name].shape}, by config.json it is {shape}"
            )


def check_pair(target: TargetConfig, draft: DraftConfig) -> None:
    """Refuse a drafter that was not made for this target.

    Raises:
        CheckpointError: hidden sizes or rotations differ, or a feature layer or the mask token does not exist in the
            target.
    """
    for name in ("hidden_size", "head_dim", "rope_theta"):
        theirs, own = getattr(draft.decoder, name), getattr(target.decoder, name)
        if theirs != own:
            raise CheckpointError(f"the drafter's {name} {theirs} is not the target's {own}")
    layers, ids = target.decoder.num_layers, draft.target_layer_ids
    if not ids or len(set(ids)) < len(ids) or not all(0 <= layer < layers for layer in ids):
        raise CheckpointError(f"the drafter reads the layers {list(ids)}; the target has {layers}, from 0 on")
    if not 0 <= draft.mask_token_id < target.vocab_size:
        raise CheckpointError(
            f"mask token {draft.mask_token_id} is outside the vocabulary of {target.vocab_size}"
        )
