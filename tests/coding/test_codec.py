"""The codec between checker and solution: exact builtin types there and back, and nothing else."""

from __future__ import annotations

import contextlib
import math
import struct
from collections import Counter, OrderedDict, namedtuple
from enum import IntEnum
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_ddtree.coding.sandbox.inner import codec
from pytest_ddtree.coding.sandbox.inner.codec import (
    MAX_DEPTH,
    CodecError,
    NotPlainError,
    TooLargeError,
    decode,
    encode,
)

HASHABLE_LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(min_value=-(2**400), max_value=2**400),
    st.floats(allow_nan=False),
    st.complex_numbers(allow_nan=False),
    st.text(alphabet=st.characters()),
    st.text(alphabet=st.sampled_from("a\ud800\udfff\x00é")),
    st.binary(),
)
LEAVES = st.one_of(HASHABLE_LEAVES, st.just(math.nan), st.just(complex(math.nan, 1.0)))
HASHABLE = st.recursive(
    HASHABLE_LEAVES,
    lambda inner: st.one_of(st.lists(inner, max_size=4).map(tuple), st.frozensets(inner, max_size=4)),
    max_leaves=8,
)
VALUES = st.recursive(
    st.one_of(LEAVES, HASHABLE),
    lambda inner: st.one_of(
        st.lists(inner, max_size=5),
        st.lists(inner, max_size=5).map(tuple),
        st.dictionaries(HASHABLE, inner, max_size=5),
        st.sets(HASHABLE, max_size=5),
        st.frozensets(HASHABLE, max_size=5),
    ),
    max_leaves=25,
)


def identical(one: Any, other: Any) -> bool:
    """Equal with equal types throughout, bit for bit in floats; written apart from the codec."""
    if type(one) is not type(other):
        return False
    if type(one) is float:
        return struct.pack("d", one) == struct.pack("d", other)
    if type(one) is complex:
        return identical(one.real, other.real) and identical(one.imag, other.imag)
    if type(one) in (list, tuple):
        return len(one) == len(other) and all(map(identical, one, other))
    if type(one) is dict:
        return identical(list(one.items()), list(other.items()))
    if type(one) in (set, frozenset):
        rest = list(other)
        return len(one) == len(rest) and all(any(identical(a, b) for b in rest) for a in one)
    return bool(one == other)


@given(VALUES)
def test_values_come_back_identical(value: Any) -> None:
    assert identical(decode(encode(value)), value)


@given(VALUES)
def test_canonical_bytes_decode_and_are_stable(value: Any) -> None:
    canonical = encode(value, canonical=True)
    assert encode(decode(canonical), canonical=True) == canonical


@given(st.binary(max_size=200))
def test_any_bytes_decode_to_plain_values_or_are_refused(data: bytes) -> None:
    try:
        value = decode(data)
    except CodecError:
        return
    assert identical(decode(encode(value)), value)


@given(VALUES, st.data())
def test_damaged_bytes_never_raise_anything_else(value: Any, data: st.DataObject) -> None:
    raw = bytearray(encode(value))
    for _ in range(data.draw(st.integers(1, 4))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(raw)))
    for damaged in (bytes(raw), bytes(raw[:cut]), bytes(raw) + b"N"):
        with contextlib.suppress(CodecError):
            decode(damaged)


Point = namedtuple("Point", "x y")


class Colour(IntEnum):
    RED = 1


class Text(str):
    __slots__ = ()


@pytest.mark.parametrize(
    "value",
    [
        Point(1, 2), Colour.RED, Text("x"), Counter("aab"), OrderedDict(), Fraction(1, 2), bytearray(b"x"),
        object(), object, len, range(3), iter(()), ..., NotImplemented, memoryview(b""), [Point(1, 2)],
        {"k": Text("x")}, (Colour.RED,), {Text("x")},
    ],
)  # fmt: skip
def test_other_types_are_refused_wherever_they_are(value: Any) -> None:
    with pytest.raises(NotPlainError):
        encode(value)


def nested(levels: int) -> Any:
    value: Any = 0
    for _ in range(levels):
        value = [value]
    return value


def test_depth_is_capped_when_writing_and_when_reading() -> None:
    assert decode(encode(nested(MAX_DEPTH))) == nested(MAX_DEPTH)
    with pytest.raises(TooLargeError, match="levels"):
        encode(nested(MAX_DEPTH + 1))
    with pytest.raises(TooLargeError, match="levels"):
        decode(b"l\x01\x00\x00\x00" * (MAX_DEPTH + 1) + b"N")


def test_a_ring_is_too_deep_and_a_doubling_nest_too_large() -> None:
    ring: list[Any] = []
    ring.append(ring)
    with pytest.raises(TooLargeError):
        encode(ring)
    nest: Any = "x"
    for _ in range(50):
        nest = [nest, nest]
    with pytest.raises(TooLargeError, match="bytes"):
        encode(nest, max_bytes=10_000)


@pytest.mark.parametrize("value", ["x" * 101, b"x" * 101, 1 << 900, ["x" * 60, "y" * 60]])
def test_bytes_are_capped(value: Any) -> None:
    with pytest.raises(TooLargeError, match="100 bytes"):
        encode(value, max_bytes=100)


def test_parts_are_capped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(codec, "MAX_NODES", 10)
    with pytest.raises(TooLargeError, match="10 parts"):
        decode(bytes.fromhex("6c0a000000") + b"N" * 10)
    # What could not be read is not written: told apart by parts, not by bytes, of which one part may have many.
    assert decode(encode({"a" * 99: [1, (2, {3})]})) == {"a" * 99: [1, (2, {3})]}
    for value in (list(range(10)), {number: [] for number in range(5)}, [[number] for number in range(5)]):
        with pytest.raises(TooLargeError, match="10 parts"):
            encode(value)
        assert encode(value, canonical=True), "is compared, never read"


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "ends early"),
        (b"?", "unknown tag"),
        (b"NN", "too many"),
        (b"l\xff\xff\xff\xff", "beyond the data"),
        (b"s\x01\x00\x00\x00\xff", "UTF-8"),
        (b"S\x02\x00\x00\x00NN", "twice"),
        (b"d\x02\x00\x00\x00NNNN", "twice"),
        (b"S\x01\x00\x00\x00l\x00\x00\x00\x00", "unhashable"),
        (b"d\x01\x00\x00\x00l\x00\x00\x00\x00N", "unhashable"),
        (b"i\x00", "ends early"),
    ],
)
def test_malformed_bytes_are_refused(data: bytes, why: str) -> None:
    with pytest.raises(CodecError, match=why):
        decode(data)


@pytest.mark.parametrize("wrap", [set, frozenset, dict.fromkeys])
def test_sets_and_dicts_built_to_collide_are_refused(wrap: Any) -> None:
    colliding = [number * (2**61 - 1) for number in range(1, 200)]
    with pytest.raises(CodecError, match="collide"):
        decode(encode(wrap(colliding)))
    honest = list(range(5000)) + [float(number) + 0.5 for number in range(5000)]
    assert len(decode(encode(wrap(honest)))) == 10_000


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({1, 2, 3}, {3, 2, 1}),
        ({"a": 1, "b": {2, 3}}, {"b": {3, 2}, "a": 1}),
        (0.0, -0.0),
        (math.nan, -math.nan),
        (complex(math.nan, -0.0), complex(-math.nan, 0.0)),
        ({frozenset({1, 2}): [1]}, {frozenset({2, 1}): [1]}),
    ],
)
def test_canonical_bytes_are_equal_for_equal_values(one: Any, other: Any) -> None:
    assert encode(one, canonical=True) == encode(other, canonical=True)


@pytest.mark.parametrize(
    ("one", "other"),
    [(1, True), (1, 1.0), ((1,), [1]), ("a", b"a"), ({1}, frozenset({1})), ({1: 2}, {True: 2})],
)
def test_canonical_bytes_tell_types_apart(one: Any, other: Any) -> None:
    assert encode(one, canonical=True) != encode(other, canonical=True)
