"""Attention, rotation, products and the layers against plain textbook NumPy in float64."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_ddtree.reference.arena import CACHE_LINE, CHUNK_BYTES, Arena
from pytest_ddtree.reference.attention import plan_attention
from pytest_ddtree.reference.attention_parts import Chunk, cut_chunks, equal_steps
from pytest_ddtree.reference.blas import _mapped
from pytest_ddtree.reference.checkpoint import DecoderConfig, load_target
from pytest_ddtree.reference.kv_pool import FRAME, KVPool, places
from pytest_ddtree.reference.layers import swiglu
from pytest_ddtree.reference.linear import BLOCK_COLUMNS, PIECE_ROWS, Linear
from pytest_ddtree.reference.model import Rows, Target
from pytest_ddtree.reference.numerics import BFloat16, Float32, round_bits
from pytest_ddtree.reference.rope import pair_order, rotation_table
from pytest_ddtree.reference.safetensors_io import read_tensors, write_bf16_tensors
from pytest_ddtree.reference.slots import extents_of
from pytest_ddtree.reference.spans import RowSpan
from pytest_ddtree.reference.tree import ancestor_mask, causal_mask
from pytest_ddtree.reference.workspace import Workspace

CONFIG = DecoderConfig(
    hidden_size=8, num_layers=1, num_heads=4, num_kv_heads=2, head_dim=4, intermediate_size=8, rms_norm_eps=1e-6,
    rope_theta=1e4,
)  # fmt: skip


@given(
    st.integers(1, 2 * PIECE_ROWS),
    st.sampled_from([BLOCK_COLUMNS // 2, BLOCK_COLUMNS, 5 * BLOCK_COLUMNS]),
)
def test_linear_multiplies(rows, columns):
    rng = np.random.default_rng(rows)
    weight = rng.standard_normal((24, columns), dtype=np.float32)
    x = rng.standard_normal((rows, 24), dtype=np.float32)
    out = np.empty((rows, columns), dtype=np.float32)
    assert Linear(weight, Float32(), Arena())(x, out) is out
    np.testing.assert_allclose(out, x.astype(float) @ weight.astype(float), atol=1e-4)


def test_arena_keeps_arrays_apart():
    arena = Arena()
    sizes = (3, CHUNK_BYTES // 8, 5, CHUNK_BYTES // 6, CHUNK_BYTES // 3, 7)
    placed = [arena.place(np.full((size,), number, dtype=np.float32)) for number, size in enumerate(sizes)]
    for number, (size, array) in enumerate(zip(sizes, placed, strict=True)):
        assert array.shape == (size,)
        assert array.ctypes.data % CACHE_LINE == 0
        assert (array == number).all()


def test_rounding_to_bf16_is_to_nearest_even():
    # In [1, 2) bfloat16 steps by 1/128.
    values = np.array([1.0, 1.0 + 1 / 256, 1.0 + 3 / 256, -np.inf, 3.14159], dtype=np.float32)
    round_bits(values, 16)
    assert values.tolist() == [1.0, 1.0, 1.0 + 4 / 256, -np.inf, 3.140625]


def test_bf16_products_depend_on_the_number_of_rows():
    rng = np.random.default_rng(0)
    weight = rng.standard_normal((192, 64), dtype=np.float32)
    x = rng.standard_normal((100, 192), dtype=np.float32)
    linear = Linear(weight, BFloat16(), Arena())
    many = linear(x, np.empty((100, 64), dtype=np.float32))[:1]
    one = linear(x[:1], np.empty((1, 64), dtype=np.float32))
    assert not np.array_equal(many, one)
    np.testing.assert_allclose(many, one, atol=1.5)


def test_rotation_is_half_split_rope():
    table = rotation_table(50, 8, 1e4)
    vector = np.random.default_rng(0).standard_normal(8).astype(np.float32)
    paired = vector[pair_order(8)].copy()
    turned = (paired.view(np.complex64) * table[37]).view(np.float32)
    half = 4
    angle = 37 * 1e4 ** (-np.arange(half) / half)
    rotated = np.concatenate([-vector[half:], vector[:half]])
    expected = vector * np.tile(np.cos(angle), 2) + rotated * np.tile(np.sin(angle), 2)
    np.testing.assert_allclose(turned, expected[pair_order(8)], atol=1e-5)


def test_swiglu_of_the_negated_pair():
    rng = np.random.default_rng(0)
    gate, up = rng.standard_normal((3, 5)).astype(np.float32), rng.standard_normal((3, 5)).astype(np.float32)
    result = swiglu(-gate, -up)
    np.testing.assert_allclose(result, gate / (1 + np.exp(-gate)) * up, atol=1e-6)


def naive_attention(queries, keys, values, allowed):
    """queries [heads, dim], keys/values [positions, kv, dim], allowed [positions] -> [heads, dim], in float64."""
    out = np.empty(queries.shape)
    for head in range(len(queries)):
        kv = head // CONFIG.group
        scores = keys[allowed, kv].astype(float) @ queries[head].astype(float)
        weights = np.exp(scores - scores.max())
        out[head] = weights / weights.sum() @ values[allowed, kv]
    return out


# Context lengths and row counts on both sides of a frame's and a block's border, several requests at once.
@pytest.mark.parametrize(
    "shapes",
    [
        [(0, 1)], [(5, 1), (200, 1), (210, 1)], [(FRAME, 9), (FRAME + 3, 9), (2, 9)], [(0, 40)], [(3 * FRAME + 1, 8)],
        [(0, 65)], [(17, 300)], [(FRAME, 64), (0, 65), (7, 1)], [(FRAME, 130), (20, 130), (5, 9)],
    ],
)  # fmt: skip
@pytest.mark.parametrize("bounded", [False, True])
def test_attention_over_scattered_slots(shapes, bounded):
    rng = np.random.default_rng(1)
    pool = KVPool(1, 2, 4, 24 * FRAME)
    spans, masks, expected, row = [], [], [], 0
    taken = rng.permutation(12 * FRAME // 8)  # groups of 8 neighbouring slots, in any order
    total = sum(rows for _, rows in shapes)
    queries = rng.standard_normal((total, 4, 4), dtype=np.float32)
    keys = rng.standard_normal((total, 2, 4), dtype=np.float32)
    values = rng.standard_normal((total, 2, 4), dtype=np.float32)
    group, stretch = 0, 13 * FRAME + 5
    for past, rows in shapes:
        count = -(-(past + rows) // 8)
        slots = np.concatenate([np.arange(8) + 8 * start for start in taken[group : group + count]])[
            : past + rows
        ]
        if past > FRAME:
            # A long contiguous stretch too, so that whole frames are read at once.
            slots = np.arange(past + rows) + stretch
            stretch += past + rows + 3
        group += count
        old_keys = rng.standard_normal((past, 2, 4), dtype=np.float32)
        old_values = rng.standard_normal((past, 2, 4), dtype=np.float32)
        if past:
            pool.write(0, places(slots[:past]), old_keys, old_values)
        pool.write(0, places(slots[past:]), keys[row : row + rows], values[row : row + rows])
        spans.append(RowSpan(row, rows, extents_of(slots[:past]), extents_of(slots[past:])))
        mask = causal_mask(rows) if rows <= 64 else None
        if rows == 9:
            mask = ancestor_mask((-1, 0, 0, 1, 1, 2, 4, 4, 0))
        if rows == 130:
            # A tree of more rows than are handled at once, some of which see what comes behind them.
            mask = ancestor_mask((-1, *(int(rng.integers(0, node)) for node in range(1, rows)))).copy()
            mask[rng.random(mask.shape) < 0.1] = 0.0
        masks.append(mask if rows > 1 else None)
        visible = np.triu(np.ones((rows, rows), dtype=bool)).T if mask is None else mask == 0.0
        all_keys = np.concatenate([old_keys, keys[row : row + rows]])
        all_values = np.concatenate([old_values, values[row : row + rows]])
        for index in range(rows):
            allowed = np.concatenate([np.ones(past, dtype=bool), visible[index]])
            expected.append(naive_attention(queries[row + index], all_keys, all_values, allowed))
        row += rows
    out = np.empty_like(queries)
    for kernel in plan_attention(spans, masks, pool, CONFIG, Float32(), Workspace(), bounded=bounded):
        kernel.bind(queries, keys, values, out)
        kernel(0)
    np.testing.assert_allclose(out, np.asarray(expected), atol=2e-5)


def test_a_drafters_block_of_many_rows_sees_itself_whole():
    """Its keys are not in the pool: nothing there may be taken for them."""
    rng = np.random.default_rng(3)
    past, rows = 40, 70
    pool = KVPool(1, 2, 4, FRAME)
    queries = rng.standard_normal((rows, 4, 4), dtype=np.float32)
    keys, values = rng.standard_normal((2, past + rows, 2, 4), dtype=np.float32)
    slots = np.arange(past) + 5
    pool.write(0, places(slots), keys[:past], values[:past])
    out = np.empty_like(queries)
    span = RowSpan(0, rows, extents_of(slots))
    for kernel in plan_attention([span], [None], pool, CONFIG, Float32(), Workspace()):
        kernel.bind(queries, keys[past:], values[past:], out)
        kernel(0)
    seen = np.ones(past + rows, dtype=bool)
    expected = [naive_attention(query, keys, values, seen) for query in queries]
    np.testing.assert_allclose(out, np.asarray(expected), atol=2e-5)


# In frames at equal distances, in one frame each but unevenly, and across a frame's border.
@pytest.mark.parametrize("starts", [(3, 2, 4, 5), (3, 5, 7, 9), (9, 7, 5, 3), (2, 3, 7, 8)])
@pytest.mark.parametrize("shift", [0, FRAME - 30])
@pytest.mark.parametrize("rows", [1, 9])
@pytest.mark.parametrize("stored", [False, True])
def test_attention_of_requests_of_one_length(starts, shift, rows, stored):
    rng = np.random.default_rng(2)
    past, count = 40, len(starts)
    pool = KVPool(1, 2, 4, 12 * FRAME)
    queries = rng.standard_normal((count * rows, 4, 4), dtype=np.float32)
    keys, values = rng.standard_normal((2, count, past + rows, 2, 4), dtype=np.float32)
    mask = ancestor_mask((-1, 0, 0, 1, 1, 2, 4, 4, 0)) if rows == 9 else None
    spans, expected = [], []
    for index, start in enumerate(starts):
        slots = np.arange(past + rows) + start * FRAME + shift
        size = past + rows if stored else past
        pool.write(0, places(slots[:size]), keys[index, :size], values[index, :size])
        own = extents_of(slots[past:]) if stored else []
        spans.append(RowSpan(index * rows, rows, extents_of(slots[:past]), own))
        for row in range(rows):
            seen = np.ones(past + rows, dtype=bool)
            seen[past:] = mask[row] == 0.0 if mask is not None else np.arange(rows) == row
            expected.append(naive_attention(queries[index * rows + row], keys[index], values[index], seen))
    out = np.empty_like(queries)
    own_keys, own_values = (one[:, past:].reshape(-1, 2, 4) for one in (keys, values))
    for kernel in plan_attention(spans, [mask] * count, pool, CONFIG, Float32(), Workspace()):
        kernel.bind(queries, own_keys, own_values, out)
        kernel(0)
    np.testing.assert_allclose(out, np.asarray(expected), atol=2e-5)


def test_products_are_shared_where_frames_step_evenly():
    def slots(frame: int, begin: int = 0, end: int = 20) -> list[Chunk]:
        return cut_chunks([(frame * FRAME + begin, frame * FRAME + end)], 0)

    assert equal_steps([slots(1), slots(3), slots(5)]) == [(slots(1)[0], slice(1, 6, 2))]
    for others in ([], [slots(3), slots(4)], [slots(1)], [slots(0)], [slots(3, 1, 21)], [slots(3, 0, 19)]):
        assert equal_steps([slots(1), *others]) == []


def test_prompt_in_pieces_equals_prompt_at_once(tiny):
    checkpoint = load_target(tiny[0])
    target = Target(checkpoint, Float32(), positions=512)
    tokens = np.random.default_rng(0).integers(6, 300, size=200)
    decoder = checkpoint.config.decoder

    def run(cuts: list[int]) -> np.ndarray:
        pool = KVPool(decoder.num_layers, decoder.num_kv_heads, decoder.head_dim, 1024)
        rows = []
        for begin, end in pairwise(cuts):
            count = end - begin
            span = RowSpan(0, count, [(100, 100 + begin)] if begin else [], [(100 + begin, 100 + end)])
            mask = causal_mask(count) if 1 < count <= 64 else None
            positions = np.arange(begin, end)
            stream, _ = target.forward(
                Rows(tokens[begin:end], positions, positions + 100, [span], [mask]), pool
            )
            rows.append(target.logits(stream))
        return np.concatenate(rows)

    np.testing.assert_allclose(run([0, 200]), run([0, 1, 30, 94, 95, 200]), atol=2e-4)


def test_safetensors_round_trip(tmp_path):
    tensors = {"a": np.array([[1.5, -2.0]], dtype=np.float32), "b": np.zeros((0, 3), dtype=np.float32)}
    write_bf16_tensors(tmp_path / "x.safetensors", tensors)
    found = read_tensors(tmp_path / "x.safetensors")
    assert found["a"].tolist() == [[1.5, -2.0]]
    assert found["b"].shape == (0, 3)
    (tmp_path / "y.safetensors").write_bytes(b"\xff" * 20)
    with pytest.raises(ValueError, match="no safetensors file"):
        read_tensors(tmp_path / "y.safetensors")


def test_the_library_of_products_is_found_where_a_path_has_spaces():
    line = "7f3c5e000000-7f3c5e0ab000 r-xp 00000000 08:01 1311 "
    found = "/home/some one/my tests/.venv/numpy.libs/libscipy_openblas64_-ff651d7f.so"
    lines = [
        "7ffd1000-7ffd2000 rw-p 00000000 00:00 0 [stack]",
        "7f3c5d000000-7f3c5d0ab000 rw-p 00000000 00:00 0",
    ]
    scipys = f"{line}/home/some one/.venv/scipy.libs/libscipy_openblas-68440149.so"
    assert _mapped("\n".join([*lines, scipys, line + found])) == found
    assert _mapped("\n".join([*lines, scipys])) is None
