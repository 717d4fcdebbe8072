"""The axes of the matrix beside context and concurrency: what the prompts are about, how is sampled, what the prefix cache holds."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

CLASSES = ("code", "chat", "longdoc", "edit")
"""Workload classes that ship with the package."""

Cache = Literal["flushed", "warm", "untouched"]
CACHES: tuple[Cache, ...] = get_args(Cache)

MODEL = "model"
"""The sampling that the checkpoint's generation_config.json recommends."""
MODEL_IF_ANY = "model?"
"""The same, and nothing where it recommends none."""

_NAME = re.compile(r"[a-z0-9_.]+")
_RESERVED = re.compile(rf"t[\d.]+|t{MODEL}|{'|'.join(CACHES)}|ctx\d+|c\d+")


@dataclass(frozen=True, slots=True)
class WorkloadChoice:
    """One item of `--ddtree-workload`: a shipped class, or questions of the user's own before the documents of a class."""

    name: str
    """In cell ids and reports."""
    documents: str
    """The shipped class whose texts fill the prompts up to their length."""
    file: Path | None = None
    """ShareGPT, SPEED-Bench or plain JSONL, or text with blank lines between the questions."""

    def __str__(self) -> str:
        return self.name if self.file is None else f"{self.documents}:{self.file}"

    def digest(self) -> str | None:
        """Of the user's file; None for a shipped class. Raises OSError."""
        return None if self.file is None else hashlib.sha256(self.file.read_bytes()).hexdigest()[:8]


def parse_workload(text: str) -> WorkloadChoice:
    """`code`; or `FILE`, whose prompts are filled up with the class `chat`; or `code:FILE` with another class.

    Raises:
        ValueError: no class and no file of that name, or a file whose name cannot stand in a test id.
    """
    if text in CLASSES:
        return WorkloadChoice(text, text)
    documents, colon, rest = text.partition(":")
    if colon and documents in CLASSES:
        path = Path(rest).expanduser()
    else:
        documents, path = "chat", Path(text).expanduser()
    if not path.is_file():
        raise ValueError(
            f"takes {', '.join(CLASSES)}, or a file of questions as FILE or CLASS:FILE; there is no file {path}"
        )
    name = re.sub(r"[^a-z0-9_.]+", "_", path.stem.lower())
    if name in CLASSES or _RESERVED.fullmatch(name) or not _NAME.fullmatch(name):
        raise ValueError(
            f"{path}: its name stands in test ids, where {name!r} means something else; rename the file"
        )
    return WorkloadChoice(name, documents, path)


def parse_temperature(text: str) -> float | str:
    """A number from 0 to 10, `model` or `model?`. Raises ValueError."""
    if text in (MODEL, MODEL_IF_ANY):
        return text
    allowed = f"takes numbers from 0 to 10, `{MODEL}` for what generation_config.json recommends, or `{MODEL_IF_ANY}` for that if any"
    if not re.fullmatch(r"[0-9]*\.?[0-9]+", text) or float(text) > 10:
        raise ValueError(allowed)
    return float(text)
