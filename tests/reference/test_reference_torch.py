"""Logits against transformers' Qwen3 and the drafter against PyTorch (extra ``torch``; not part of ``make test``)."""

from __future__ import annotations

import inspect
import textwrap

import numpy as np
import pytest

from pytest_ddtree.reference.checkpoint import load_draft, load_target
from pytest_ddtree.reference.drafter import Drafter
from pytest_ddtree.reference.kv_pool import KVPool
from pytest_ddtree.reference.model import Rows, Target
from pytest_ddtree.reference.numerics import Float32
from pytest_ddtree.reference.spans import RowSpan
from pytest_ddtree.reference.tokenizer import Tokenizer

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytestmark = [
    pytest.mark.torch,
    # What the two libraries warn about is theirs.
    pytest.mark.filterwarnings("ignore"),
]
LENGTH = 1500
BLOCK = 8


@pytest.fixture(scope="module")
def ids(trained):
    text = inspect.getsource(textwrap) + inspect.getsource(inspect)
    return Tokenizer(trained[0]).encode(text)[:LENGTH]


@pytest.fixture(scope="module")
def ours(trained, ids):
    """(target, drafter, residual stream, features) of the whole text in one pass."""
    checkpoint, small = load_target(trained[0]), load_draft(trained[1])
    target = Target(checkpoint, Float32(), positions=LENGTH + BLOCK)
    decoder = checkpoint.config.decoder
    pool = KVPool(decoder.num_layers, decoder.num_kv_heads, decoder.head_dim, 2048)
    positions = np.arange(len(ids))
    rows = Rows(np.asarray(ids), positions, positions, [RowSpan(0, len(ids), [], [(0, len(ids))])], [None])
    stream, features = target.forward(rows, pool, capture=small.config.target_layer_ids)
    return target, Drafter(small, target, Float32()), stream.copy(), features.copy()


@pytest.fixture(scope="module")
def theirs(trained, ids):
    """transformers' model in float32 and its hidden states."""
    model = transformers.AutoModelForCausalLM.from_pretrained(trained[0], dtype=torch.float32)
    with torch.no_grad():
        out = model(torch.tensor([ids]), output_hidden_states=True)
    return model, out


def test_logits_agree_with_transformers(ours, theirs):
    target, _, stream, _ = ours
    logits = target.logits(stream)
    reference = theirs[1].logits[0].numpy()
    np.testing.assert_allclose(logits, reference, atol=1e-3)
    assert (logits.argmax(-1) == reference.argmax(-1)).mean() > 0.999


def test_features_are_the_streams_behind_the_layers(ours, theirs):
    _, drafter, _, features = ours
    hidden = theirs[1].hidden_states[0].shape[-1]
    for index, layer in enumerate(drafter.config.target_layer_ids):
        reference = theirs[1].hidden_states[layer + 1][0].numpy()
        np.testing.assert_allclose(features[:, index * hidden : (index + 1) * hidden], reference, atol=2e-3)


def torch_draft(checkpoint, embedding, features, last_token, start, window):
    """The DFlash forward pass written plainly: one layer after another, one block, no cache."""
    config, decoder = checkpoint.config, checkpoint.config.decoder
    weights = {name: torch.tensor(value) for name, value in checkpoint.tensors.items()}

    def norm(x, weight):
        return weight * x / torch.sqrt((x * x).mean(-1, keepdim=True) + decoder.rms_norm_eps)

    def rotate(x, positions):
        half = decoder.head_dim // 2
        inverse = decoder.rope_theta ** (-torch.arange(half, dtype=torch.float32) / half)
        angle = positions[:, None].float() * inverse
        cos, sin = torch.cat([angle.cos()] * 2, -1)[:, None], torch.cat([angle.sin()] * 2, -1)[:, None]
        return x * cos + torch.cat([-x[..., half:], x[..., :half]], -1) * sin

    low = 0 if window is None else max(0, start - window)
    context = norm(torch.tensor(features[low:start]) @ weights["fc.weight"].T, weights["hidden_norm.weight"])
    x = embedding[[last_token] + [config.mask_token_id] * (BLOCK - 1)]
    block_positions, context_positions = torch.arange(start, start + BLOCK), torch.arange(low, start)
    for layer in range(decoder.num_layers):
        part = {
            name.removeprefix(f"layers.{layer}.").removesuffix(".weight"): weight
            for name, weight in weights.items()
            if name.startswith(f"layers.{layer}.")
        }
        hidden = norm(x, part["input_layernorm"])

        def heads(source, name, part=part):
            return (source @ part[f"self_attn.{name}_proj"].T).view(len(source), -1, decoder.head_dim)

        query = rotate(norm(heads(hidden, "q"), part["self_attn.q_norm"]), block_positions)
        keys = [
            rotate(norm(heads(source, "k"), part["self_attn.k_norm"]), positions)
            for source, positions in ((context, context_positions), (hidden, block_positions))
        ]
        key = torch.cat(keys).repeat_interleave(decoder.group, 1)
        value = torch.cat([heads(context, "v"), heads(hidden, "v")]).repeat_interleave(decoder.group, 1)
        scores = torch.einsum("qhd,khd->hqk", query, key) * decoder.head_dim**-0.5
        mixed = torch.einsum("hqk,khd->qhd", scores.softmax(-1), value).reshape(BLOCK, -1)
        x = x + mixed @ part["self_attn.o_proj"].T
        hidden = norm(x, part["post_attention_layernorm"])
        gate = torch.nn.functional.silu(hidden @ part["mlp.gate_proj"].T) * (hidden @ part["mlp.up_proj"].T)
        x = x + gate @ part["mlp.down_proj"].T
    return (norm(x, weights["norm.weight"]) @ embedding.T)[1:].numpy()


@pytest.mark.parametrize("window", [None, 128])
def test_draft_logits_agree_with_torch(trained, ours, ids, window):
    target, drafter, _, features = ours
    decoder = drafter.config.decoder
    pool = KVPool(decoder.num_layers, decoder.num_kv_heads, decoder.head_dim, 2048)
    positions = np.arange(len(ids))
    drafter.add_context(features, positions, positions, pool)
    embedding = torch.tensor(target.embedding)
    for start in (1, 60, 128, 700, LENGTH - 1):
        low = 0 if window is None else max(0, start - window)
        span = RowSpan(0, BLOCK, [(low, start)])
        logits = drafter.draft(np.array([ids[start]]), np.array([start]), [span], pool, block_size=BLOCK)[0]
        reference = torch_draft(load_draft(trained[1]), embedding, features, ids[start], start, window)
        np.testing.assert_allclose(logits, reference, atol=1e-3)
