"""Checkpoints that cannot be run are refused in one line that says where and why, before anything is served."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from pytest_ddtree.reference.args import parse
from pytest_ddtree.reference.checkpoint import CheckpointError
from pytest_ddtree.reference.launch import load
from pytest_ddtree.reference.safetensors_io import read_tensors, write_bf16_tensors
from pytest_ddtree.reference.testing import TinyShape, write_checkpoints


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return write_checkpoints(tmp_path_factory.mktemp("whole"), TinyShape(num_layers=2, draft_layers=1))[
        0
    ].parent


@pytest.fixture
def pair(whole, tmp_path):
    return shutil.copytree(whole, tmp_path / "pair")


def config(**values):
    def change(path: Path) -> None:
        file = path / "config.json"
        kept = json.loads(file.read_text()) | values
        file.write_text(json.dumps({key: value for key, value in kept.items() if value is not ...}))

    return change


def dflash(**values):
    def change(path: Path) -> None:
        config(dflash_config=json.loads((path / "config.json").read_text())["dflash_config"] | values)(path)

    return change


def text(name, content):
    return lambda path: (path / name).write_text(content)


def tensors(**values):
    def change(path: Path) -> None:
        kept = read_tensors(path / "model.safetensors")
        for name, value in values.items():
            full = next(key for key in kept if name in key)
            kept.pop(full) if value is None else kept.update({full: value})
        write_bf16_tensors(path / "model.safetensors", kept)

    return change


@pytest.mark.parametrize(
    ("part", "change", "words"),
    [
        ("target", config(vocab_size=...), "target/config.json lacks vocab_size"),
        ("target", config(hidden_size=None), "target/config.json cannot be used: int"),
        ("target", config(rope_theta=...), "target/config.json lacks rope_theta"),
        ("target", config(num_key_value_heads=0), "target/config.json cannot be used: .* by zero"),
        ("target", config(head_dim=15), "head_dim of 15 cannot be rotated in pairs"),
        (
            "target",
            config(vocab_size=321),
            r"embed_tokens.weight has the shape \(320, 32\), by .* is \(321, 32\)",
        ),
        ("target", config(tie_word_embeddings=False), "lacks the tensor lm_head.weight"),
        ("target", config(attention_bias=True), "attention_bias True; the reference server does not compute"),
        ("target", config(hidden_act="gelu"), "hidden_act gelu"),
        ("target", config(rope_scaling={"rope_type": "yarn", "factor": 4.0}), "rope_type yarn"),
        ("target", config(rope_scaling={"type": "linear", "factor": 2.0}), "rope_type linear"),
        ("draft", config(layer_types=["sliding_attention"]), r"layer_types \['sliding_attention'\]"),
        ("target", text("generation_config.json", "{"), "generation_config.json cannot be used"),
        ("target", text("model.safetensors", "short"), "no readable safetensors file: .* has 5 bytes"),
        (
            "target",
            text("model.safetensors", "x" * 4096),
            "model.safetensors is no readable safetensors file",
        ),
        ("target", tensors(embed_tokens=None), "lacks the tensor model.embed_tokens.weight"),
        ("target", tensors(q_proj=np.zeros((1, 32), np.float32)), "q_proj.weight has the shape"),
        ("target", text("tokenizer.json", "{}"), "tokenizer.json cannot be read"),
        ("target", text("tokenizer_config.json", "{"), "tokenizer_config.json is not valid JSON"),
        ("target", text("chat_template.jinja", "{% if %}"), "chat template is none"),
        ("draft", config(block_size=...), "draft/config.json lacks block_size"),
        ("draft", config(rope_theta=5e5), "rope_theta 500000.0 is not the target's 10000.0"),
        ("draft", dflash(target_layer_ids=[0, 0]), r"reads the layers \[0, 0\]"),
        ("draft", dflash(target_layer_ids=[0, -1]), r"reads the layers \[0, -1\]; the target has 2"),
        ("draft", dflash(target_layer_ids=[0, 2]), r"reads the layers \[0, 2\]; the target has 2"),
        ("draft", dflash(target_layer_ids=[0]), "fc.weight has the shape"),
    ],
)
def test_what_cannot_be_run_is_named(pair, part, change, words):
    change(pair / part)
    draft = ("--speculative-algorithm", "DDTREE", "--speculative-draft-model-path", str(pair / "draft"))
    with pytest.raises(CheckpointError, match=words):
        load(parse(["--model-path", str(pair / "target"), *draft]))


def test_what_changes_nothing_is_taken(pair):
    plain = {"rope_theta": 10000.0, "rope_type": "default"}
    config(rope_parameters=plain, rope_theta=..., rope_scaling=None, layer_types=["full_attention"] * 2)(
        pair / "target"
    )
    assert load(parse(["--model-path", str(pair / "target")])).target.config.decoder.rope_theta == 10000.0
