"""What makes two baseline records comparable, and digests of files without reading hundreds of gigabytes."""

from __future__ import annotations

import hashlib
import json
import os
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

from pytest_ddtree.exactness.prompts import Prompt

UNKNOWN = "unknown"
_TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer.model",
    "vocab.json",
    "merges.txt",
    "special_tokens_map.json",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fingerprint:
    """Everything that a baseline's answers depend on. A field that nobody could read is `unknown`."""

    tokenizer: str
    weights: str
    build: str
    """The engine's build: its version and source revision, or a name that the user gives it."""
    arguments: str
    """The arguments that its numerics depend on (dtype, attention backend, KV type, parallelism, ...)."""
    prompts: str
    """The prompts, how many tokens were asked for, and how many alternatives were recorded."""
    gpu: str

    def differences(self, other: Fingerprint, *, from_build: str | None = None) -> tuple[Difference, ...]:
        """Fields in which `other`, what is here, differs from this, what was recorded.

        `from_build` says that these records are meant to come from another build, of this name: then the
        recorded build must be that one, and the build here may be any.
        """
        found = []
        for field in fields(self):
            recorded, here = getattr(self, field.name), getattr(other, field.name)
            if field.name == "build" and from_build is not None:
                here = from_build
            if recorded != here:
                found.append(Difference(field.name, recorded, here))
        return tuple(found)

    def as_json(self) -> dict[str, str]:
        """Field name -> value."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @classmethod
    def from_json(cls, value: Mapping[str, str]) -> Fingerprint:
        """The fingerprint that `as_json` wrote; KeyError for a missing field."""
        return cls(**{field.name: str(value[field.name]) for field in fields(cls)})


@dataclass(frozen=True, slots=True)
class Difference:
    """A field that makes records foreign."""

    name: str
    recorded: str
    here: str

    def __str__(self) -> str:
        return f"{self.name}: recorded {self.recorded}, here {self.here}"


def prompts_digest(prompts: Sequence[Prompt], *, output: int, top: int) -> str:
    """Digest of tags and ids in order, and of what was asked about them."""
    digest = hashlib.sha256(f"{output} {top}\n".encode())
    for prompt in prompts:
        digest.update(f"{prompt.tag}\0{','.join(map(str, prompt.ids))}\n".encode())
    return digest.hexdigest()[:16]


def tokenizer_digest(model: Path) -> str:
    """Digest of the tokenizer's files in a checkpoint folder; `unknown` where there is none."""
    return _digest((os.fsencode(path.name), path.read_bytes()) for path in _existing(model, _TOKENIZER_FILES))


def weights_digest(model: Path) -> str:
    """Digest of a checkpoint by its index, the headers and sizes of its safetensors files, and its config.

    Headers hold every tensor's name, type, shape and place, so another model or another quantisation differs;
    a retrained one of the same shape and size does too if its files carry a revision, a hub's snapshot folder
    name or other file sizes. Nothing of the weights themselves is read, because they may be 590 GB.
    """
    small = _existing(model, ("config.json", "model.safetensors.index.json"))
    shards = sorted(model.glob("*.safetensors")) if model.is_dir() else []
    parts = [(os.fsencode(path.name), path.read_bytes()) for path in small]
    parts += [(os.fsencode(path.name), _header(path) + str(path.stat().st_size).encode()) for path in shards]
    if parts:
        parts.append((b"revision", _revision(model).encode()))
    return _digest(parts)


def _revision(model: Path) -> str:
    """The revision that a hub's cache puts into the path (`snapshots/<revision>`), else nothing."""
    names = model.resolve().parts
    return names[names.index("snapshots") + 1] if "snapshots" in names[:-1] else ""


def _header(path: Path) -> bytes:
    """The header of a safetensors file, normalised; its first bytes where it is none."""
    with path.open("rb") as file:
        start = file.read(8)
        size = struct.unpack("<Q", start)[0] if len(start) == 8 else 0
        if not 0 < size < 1 << 28:
            return start
        header = file.read(size)
    try:
        return json.dumps(json.loads(header), sort_keys=True).encode()
    except ValueError:
        return header


def _existing(folder: Path, names: Iterable[str]) -> list[Path]:
    return [folder / name for name in names if (folder / name).is_file()]


def _digest(parts: Iterable[tuple[bytes, bytes]]) -> str:
    digest = hashlib.sha256()
    empty = True
    for name, content in parts:
        empty = False
        digest.update(name + b"\0" + len(content).to_bytes(8, "little") + content)
    return UNKNOWN if empty else digest.hexdigest()[:16]
