"""Reading and writing safetensors files as float32, bfloat16 included.

NumPy has no bfloat16, so the generic loader cannot hand such tensors over. A bfloat16 is the upper half of a
float32: shifting its bits left by 16 gives the exact value.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from .arrays import F32


def read_tensors(path: Path) -> dict[str, F32]:
    """All tensors of one safetensors file, as float32.

    Raises:
        ValueError: the file is no safetensors file or holds a type other than F32, F16, BF16.
    """
    raw = path.read_bytes()
    if len(raw) < 8:
        raise ValueError(f"{path} is no safetensors file: it has {len(raw)} bytes")
    (header_len,) = struct.unpack_from("<Q", raw)
    if header_len > len(raw) - 8:
        raise ValueError(f"{path} is no safetensors file: its header claims {header_len} bytes of {len(raw)}")
    header = json.loads(raw[8 : 8 + header_len])
    base = 8 + header_len
    tensors: dict[str, F32] = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        begin, end = entry["data_offsets"]
        tensors[name] = _decode(raw, base + begin, end - begin, entry["dtype"], name, path).reshape(
            entry["shape"]
        )
    return tensors


def _decode(raw: bytes, offset: int, size: int, dtype: str, name: str, path: Path) -> F32:
    if dtype == "BF16":
        halves = np.frombuffer(raw, dtype="<u2", count=size // 2, offset=offset)
        return (halves.astype(np.uint32) << np.uint32(16)).view(np.float32)
    if dtype == "F16":
        return np.frombuffer(raw, dtype="<f2", count=size // 2, offset=offset).astype(np.float32)
    if dtype == "F32":
        return np.frombuffer(raw, dtype="<f4", count=size // 4, offset=offset).copy()
    raise ValueError(f"{path}: tensor {name} has type {dtype}; this server reads F32, F16 and BF16")


def to_bf16_bits(values: F32) -> bytes:
    """Little-endian bfloat16 bytes of float32 values, rounded to nearest even."""
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
    return rounded.astype("<u2").tobytes()


def write_bf16_tensors(path: Path, tensors: Mapping[str, F32]) -> None:
    """Write tensors as bfloat16 in safetensors layout."""
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    blobs: list[bytes] = []
    offset = 0
    for name, values in tensors.items():
        blob = to_bf16_bits(values)
        header[name] = {
            "dtype": "BF16",
            "shape": list(values.shape),
            "data_offsets": [offset, offset + len(blob)],
        }
        blobs.append(blob)
        offset += len(blob)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(blobs))
