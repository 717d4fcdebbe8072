"""Write checkpoints: bf16 safetensors and config.json, and read them back without any framework.

NumPy has no bfloat16, so `safetensors.numpy` refuses such a file. `read_bf16` shows how to do without: the
upper 16 bits of a float32 are the bfloat16, so the raw 16-bit words are shifted left by 16.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import numpy as np
import torch
from safetensors.torch import load_file, save_file

from training.modeling import (
    DraftConfig,
    Drafter,
    ModelConfig,
    Target,
    draft_hf_config,
    moe_hf_config,
    target_hf_config,
)
from training.tokenizer import write_json


def save_target(model: Target, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "config.json", target_hf_config(model.cfg))
    save_weights(model, folder / "model.safetensors")


def save_moe(model: Target, folder: Path) -> None:
    """A target with experts. Servers do not tie this architecture's head, so the file has it twice."""
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "config.json", moe_hf_config(model.cfg))
    head = {"lm_head.weight": model.model.embed_tokens.weight}
    save_weights(model, folder / "model.safetensors", head)


def save_drafter(model: Drafter, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "config.json", draft_hf_config(model.cfg))
    save_weights(model, folder / "model.safetensors")


def save_weights(
    model: torch.nn.Module, path: Path, extra: Mapping[str, torch.Tensor] = MappingProxyType({})
) -> None:
    named = {**model.state_dict(), **extra}
    tensors = {name: p.detach().bfloat16().contiguous().cpu().clone() for name, p in named.items()}
    save_file(tensors, path, metadata={"format": "pt"})


def load_target(folder: Path) -> Target:
    raw = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    model = Target(model_config(raw))
    load_weights(model, folder / "model.safetensors")
    return model


def load_drafter(folder: Path) -> Drafter:
    raw = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    extra = raw["dflash_config"]
    model = Drafter(
        DraftConfig(
            model_config(raw),
            raw["block_size"],
            raw["num_target_layers"],
            extra["mask_token_id"],
            tuple(extra["target_layer_ids"]),
        )
    )
    load_weights(model, folder / "model.safetensors")
    return model


def load_weights(model: torch.nn.Module, path: Path) -> None:
    model.load_state_dict({name: tensor.float() for name, tensor in load_file(path).items()})


def model_config(raw: dict[str, object]) -> ModelConfig:
    names = (
        "vocab_size",
        "hidden_size",
        "num_hidden_layers",
        "num_attention_heads",
        "num_key_value_heads",
        "head_dim",
        "intermediate_size",
        "max_position_embeddings",
        "rope_theta",
        "rms_norm_eps",
    )
    return ModelConfig(**{name: raw[name] for name in names})  # type: ignore[arg-type]


def read_bf16(path: Path) -> dict[str, np.ndarray]:
    """All tensors of a bf16 safetensors file as float32 arrays, with NumPy alone."""
    data = path.read_bytes()
    header_size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + header_size])
    tensors = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        if entry["dtype"] != "BF16":
            raise ValueError(f"{path}: tensor {name} is {entry['dtype']}, expected BF16")
        first, last = (8 + header_size + offset for offset in entry["data_offsets"])
        words = np.frombuffer(data[first:last], dtype="<u2").astype(np.uint32)
        tensors[name] = (words << 16).view(np.float32).reshape(entry["shape"])
    return tensors
