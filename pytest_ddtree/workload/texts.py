"""Texts that prompts are made of: shipped with the package, or the user's own files."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from pytest_ddtree.axes import CLASSES

WORKLOADS = CLASSES

_DOCUMENTS = {"code": ("code",), "chat": ("chat", "longdoc"), "longdoc": ("longdoc",), "edit": ("code",)}

_UNIT = re.compile(r"\n{3,}|\n{2}(?=\S)")


@dataclass(frozen=True, slots=True)
class Text:
    """A source text, split at blank lines before a line that starts at the margin (functions, paragraphs)."""

    name: str
    units: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Workload:
    """What prompts of one class are made of: documents to fill them with, and questions to end them with."""

    name: str
    texts: tuple[Text, ...]
    questions: tuple[str, ...]

    def __post_init__(self) -> None:
        if not any(text.units for text in self.texts) or not self.questions:
            raise ValueError(f"workload {self.name!r} needs a text that is not empty and a question")


def split_text(name: str, text: str) -> Text:
    """A text and its units; white space around them is dropped."""
    return Text(name, tuple(unit.strip("\n") for unit in _UNIT.split(text) if unit.strip()))


@cache
def shipped(name: str) -> Workload:
    """The workload class of that name that ships with the package; ValueError for another name."""
    if name not in WORKLOADS:
        raise ValueError(f"workload {name!r} is none of {', '.join(WORKLOADS)}")
    root = files("pytest_ddtree.workload") / "texts"
    documents = [
        entry
        for folder in _DOCUMENTS[name]
        for entry in sorted((root / folder).iterdir(), key=lambda entry: entry.name)
        if entry.name.endswith(".txt") and entry.name != "questions.txt"
    ]
    texts = tuple(
        split_text(entry.name.removesuffix(".txt"), entry.read_text("utf-8")) for entry in documents
    )
    return Workload(name, texts, questions((root / name / "questions.txt").read_text("utf-8")))


def questions(text: str) -> tuple[str, ...]:
    """Questions separated by blank lines."""
    return tuple(part.strip() for part in re.split(r"\n\s*\n", text) if part.strip())
