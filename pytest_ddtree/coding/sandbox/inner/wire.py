"""Frames on a file descriptor: a 32-bit length, then one encoded value."""

from __future__ import annotations

import os
import struct
from typing import Any, Final

from .codec import MAX_BYTES, CodecError, decode, encode

HEADER: Final = struct.Struct("<I")
# A reply is the value plus its envelope (kind, request number, texts of bounded length).
MAX_FRAME: Final = MAX_BYTES + 1024


def pack(message: tuple[object, ...], *, max_bytes: int = MAX_FRAME) -> bytes:
    """One frame. Raises CodecError when a part may not cross."""
    payload = encode(message, max_bytes=max_bytes)
    return HEADER.pack(len(payload)) + payload


def read_frame(fd: int) -> Any:
    """The next message of a blocking descriptor; EOFError when the other side is gone."""
    (size,) = HEADER.unpack(read_exactly(fd, HEADER.size))
    if size > MAX_FRAME:
        raise CodecError(f"a frame of {size} bytes")
    return decode(read_exactly(fd, size))


def read_exactly(fd: int, size: int) -> bytes:
    """`size` bytes of a blocking descriptor; EOFError when it ends before."""
    parts = []
    while size:
        chunk = os.read(fd, min(size, 1 << 20))
        if not chunk:
            raise EOFError
        parts.append(chunk)
        size -= len(chunk)
    return b"".join(parts)


def write_all(fd: int, data: bytes) -> None:
    """All of `data` to a blocking descriptor."""
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
