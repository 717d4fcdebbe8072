"""Values as bytes: exact builtin types and nothing else.

One tag byte, then the payload; lengths are 32-bit little-endian. A value whose type is a subclass of a
builtin type does not pass: its methods could lie to whoever compares it.
"""

from __future__ import annotations

import math
import struct
from collections import Counter
from collections.abc import Callable
from typing import Any, Final

MAX_DEPTH: Final = 60
MAX_BYTES: Final = 16 * 1024 * 1024
MAX_NODES: Final = 2_000_000
# Values of equal hash make sets and dicts quadratic; honest data has next to none of them.
MAX_EQUAL_HASHES: Final = 32

_U32: Final = struct.Struct("<I")
_I64: Final = struct.Struct("<q")
_F64: Final = struct.Struct("<d")
_C128: Final = struct.Struct("<dd")
_SMALL: Final = range(-(2**63), 2**63)


class CodecError(ValueError):
    """The value or the bytes are outside what may cross."""


class NotPlainError(CodecError):
    """A value of some type other than the exact builtin ones."""


class TooLargeError(CodecError):
    """Too deep, too many parts or too many bytes."""


def encode(value: object, *, max_bytes: int = MAX_BYTES, canonical: bool = False) -> bytes:
    """Bytes of `value`.

    `canonical` gives equal bytes for values that are equal with equal types throughout: sets and dicts in
    byte order, one NaN, one zero. Raises NotPlainError, and TooLargeError for what `decode` would refuse.
    """
    out = bytearray()
    _encode(value, out, 0, max_bytes, canonical)
    # Every part takes a byte or more, and canonical bytes are compared, never decoded.
    if len(out) > MAX_NODES and not canonical and _parts(value) > MAX_NODES:
        raise TooLargeError(f"more than {MAX_NODES} parts")
    return bytes(out)


def _parts(value: Any) -> int:
    """How many values a value is made of, itself included."""
    count, waiting = 0, [value]
    while waiting:
        item = waiting.pop()
        count += 1
        if type(item) is dict:
            waiting.extend(item)
            waiting.extend(item.values())
        elif type(item) in _CONTAINERS:
            waiting.extend(item)
    return count


def _encode(value: Any, out: bytearray, depth: int, limit: int, canonical: bool) -> None:
    kind = type(value)
    if value is None:
        out += b"N"
    elif kind is bool:
        out += b"T" if value else b"F"
    elif kind is int:
        if value in _SMALL:
            out += b"i" + _I64.pack(value)
        else:
            raw = value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)
            out += b"I" + _U32.pack(_length(len(raw), limit)) + raw
    elif kind is float:
        out += b"f" + _F64.pack(_settled(value) if canonical else value)
    elif kind is complex:
        parts = (value.real, value.imag)
        out += b"c" + _C128.pack(*(map(_settled, parts) if canonical else parts))
    elif kind is str:
        raw = value.encode("utf-8", "surrogatepass")
        out += b"s" + _U32.pack(_length(len(raw), limit)) + raw
    elif kind is bytes:
        out += b"b" + _U32.pack(_length(len(value), limit)) + value
    elif kind is list or kind is tuple or kind is dict or kind is set or kind is frozenset:
        if depth >= MAX_DEPTH:
            raise TooLargeError(f"nested more than {MAX_DEPTH} levels deep")
        out += _CONTAINERS[kind] + _U32.pack(_length(len(value), limit))
        _encode_items(value, kind, out, depth + 1, limit, canonical)
    else:
        raise NotPlainError(f"a value of type {kind.__module__}.{kind.__qualname__}")
    if len(out) > limit:
        raise TooLargeError(f"more than {limit} bytes")


def _encode_items(value: Any, kind: type, out: bytearray, depth: int, limit: int, canonical: bool) -> None:
    if kind is dict:
        pairs = list(value.items())
        if canonical:
            keyed = [(encode(k, max_bytes=limit, canonical=True), v) for k, v in pairs]
            for raw, item in sorted(keyed, key=_first):
                out += raw
                _encode(item, out, depth, limit, canonical)
            return
        for key, item in pairs:
            _encode(key, out, depth, limit, canonical)
            _encode(item, out, depth, limit, canonical)
    elif canonical and (kind is set or kind is frozenset):
        for raw in sorted(encode(item, max_bytes=limit, canonical=True) for item in value):
            out += raw
    else:
        for item in value:
            _encode(item, out, depth, limit, canonical)


_CONTAINERS: Final[dict[type, bytes]] = {list: b"l", tuple: b"t", dict: b"d", set: b"S", frozenset: b"Z"}


def _first(pair: tuple[bytes, object]) -> bytes:
    return pair[0]


def _settled(number: float) -> float:
    return math.nan if number != number else number + 0.0


def _length(length: int, limit: int) -> int:
    if length > limit:
        raise TooLargeError(f"more than {limit} bytes")
    return length


def decode(data: bytes) -> Any:
    """The value of `data`, made of exact builtin types; never runs code of whoever wrote the bytes.

    Raises CodecError for anything malformed, for left-over bytes, and for sets or dicts built to be slow.
    """
    if len(data) > MAX_BYTES + 1024:
        raise TooLargeError(f"more than {MAX_BYTES} bytes")
    reader = _Reader(data)
    value = reader.value(0)
    if reader.at != len(data):
        raise CodecError(f"{len(data) - reader.at} bytes too many")
    return value


class _Reader:
    __slots__ = ("at", "data", "nodes")

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0
        self.nodes = 0

    def value(self, depth: int) -> Any:
        tag = self.take(1)[0]
        self.nodes += 1
        if self.nodes > MAX_NODES:
            raise TooLargeError(f"more than {MAX_NODES} parts")
        simple = _SIMPLE.get(tag)
        if simple is not None:
            return simple(self)
        if tag not in _BUILDERS:
            raise CodecError(f"unknown tag {tag}")
        if depth >= MAX_DEPTH:
            raise TooLargeError(f"nested more than {MAX_DEPTH} levels deep")
        count = self.count()
        if tag == _DICT:
            return self.mapping(count, depth + 1)
        items = [self.value(depth + 1) for _ in range(count)]
        return _BUILDERS[tag](items)

    def mapping(self, count: int, depth: int) -> dict[Any, Any]:
        keys: list[Any] = []
        values: list[Any] = []
        for _ in range(count):
            keys.append(self.value(depth))
            values.append(self.value(depth))
        _refuse_flood(keys)
        built = dict(zip(keys, values, strict=True))
        if len(built) != count:
            raise CodecError("a key occurs twice")
        return built

    def count(self) -> int:
        (count,) = _U32.unpack(self.take(4))
        # Every item takes a byte or more, so an honest count cannot exceed what is left.
        if count > len(self.data) - self.at:
            raise CodecError("a length beyond the data")
        return int(count)

    def take(self, size: int) -> bytes:
        end = self.at + size
        if end > len(self.data):
            raise CodecError("the data ends early")
        chunk = self.data[self.at : end]
        self.at = end
        return chunk

    def big(self) -> int:
        return int.from_bytes(self.take(self.count()), "little", signed=True)

    def text(self) -> str:
        try:
            return self.take(self.count()).decode("utf-8", "surrogatepass")
        except UnicodeDecodeError as error:
            raise CodecError("text that is not UTF-8") from error

    def raw(self) -> bytes:
        return self.take(self.count())

    def small(self) -> int:
        return int(_I64.unpack(self.take(8))[0])

    def real(self) -> float:
        return float(_F64.unpack(self.take(8))[0])

    def imaginary(self) -> complex:
        return complex(*_C128.unpack(self.take(16)))


def _refuse_flood(items: list[Any]) -> None:
    try:
        hashes = [hash(item) for item in items]
    except TypeError as error:
        raise CodecError("an unhashable value inside a set or as a key") from error
    if len(items) > MAX_EQUAL_HASHES and Counter(hashes).most_common(1)[0][1] > MAX_EQUAL_HASHES:
        raise CodecError("values built to collide in a set or dict")


def _distinct(items: list[Any]) -> set[Any]:
    _refuse_flood(items)
    built = set(items)
    if len(built) != len(items):
        raise CodecError("a set holds a value twice")
    return built


def _frozen(items: list[Any]) -> frozenset[Any]:
    return frozenset(_distinct(items))


def _same(items: list[Any]) -> list[Any]:
    return items


_DICT: Final = ord("d")
_SIMPLE: Final[dict[int, Callable[[_Reader], Any]]] = {
    ord("N"): lambda reader: None,
    ord("T"): lambda reader: True,
    ord("F"): lambda reader: False,
    ord("i"): _Reader.small,
    ord("I"): _Reader.big,
    ord("f"): _Reader.real,
    ord("c"): _Reader.imaginary,
    ord("s"): _Reader.text,
    ord("b"): _Reader.raw,
}
_BUILDERS: Final[dict[int, Callable[[list[Any]], Any]]] = {
    ord("l"): _same,
    ord("t"): tuple,
    ord("S"): _distinct,
    ord("Z"): _frozen,
    _DICT: _same,
}
