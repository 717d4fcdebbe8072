"""Reading typed values out of records, collecting what is wrong instead of stopping at the first fault."""

from __future__ import annotations

import ast
import math
from collections.abc import Mapping
from typing import Any, Final, TypeAlias

from pytest_ddtree.coding.extract.names import definition_of
from pytest_ddtree.coding.extract.source import Program, quietly
from pytest_ddtree.coding.sandbox.inner.codec import CodecError, encode

MISSING: Final = object()
LONE_SURROGATE: Final = "holds half of a surrogate pair, which is no character"
#: What is added to the statement of a problem that does not itself say how to answer.
REQUEST: Final = "Answer with one Python code block that holds the whole solution."


def python_block(code: str) -> str:
    """Code as a fenced block of a user message."""
    return f"```python\n{code.strip()}\n```"


Place: TypeAlias = str | tuple[int, str]


class RecordError(Exception):
    """A record that is no problem. `faults` are (where, message) pairs; where is a key, or (case index, key)."""

    def __init__(self, faults: list[tuple[Place, str]]) -> None:
        super().__init__("; ".join(message for _, message in faults))
        self.faults = faults


class Faults:
    """Collects faults of one record."""

    def __init__(self) -> None:
        self.found: list[tuple[Place, str]] = []

    def add(self, place: Place, message: str) -> None:
        """Note a fault at a key of the record, or at a key of a case."""
        where = place if isinstance(place, str) else f"case {place[0] + 1}, {place[1]}"
        self.found.append((place, f"{where}: {message}"))

    def raise_if_any(self) -> None:
        """Raise RecordError with all that was noted."""
        if self.found:
            raise RecordError(self.found)

    def text(self, record: Mapping[str, Any], key: str, default: str | None = None) -> str:
        """A string field; without a default an absent or blank one is a fault."""
        value = record.get(key, MISSING if default is None else default)
        if value is MISSING:
            self.add(key, "is missing")
        elif not isinstance(value, str):
            self.add(key, f"must be a text, not {type(value).__name__}")
        elif default is None and not value.strip():
            self.add(key, "is empty")
        elif not is_unicode(value):
            self.add(key, LONE_SURROGATE)
        else:
            return value
        return ""

    def unknown_keys(
        self, record: Mapping[str, Any], known: frozenset[str], index: int | None = None
    ) -> None:
        """A fault for every key that is not known: most often a spelling mistake."""
        for key in record:
            if key not in known:
                place: Place = key if index is None else (index, key)
                self.add(place, f"unknown key; known: {', '.join(sorted(known))}")

    def literal(self, place: Place, text: Any) -> Any:
        """The value of a Python literal, None and a fault where it is none."""
        if not isinstance(text, str):
            self.add(place, f"must be a Python literal in a text, not {type(text).__name__}")
            return None
        try:
            found: list[Any] | None = quietly(lambda: [ast.literal_eval(text.strip())])
        except TypeError:  # a list in a set, a dict as a key
            found = None
        if found is None:
            self.add(place, f"is no Python literal: {_shortened(text)}")
            return None
        return found[0]

    def crosses(self, place: Place, value: Any) -> bool:
        """Whether a value can be sent to a solution and come back from one; a fault where it cannot."""
        try:
            encode(value)
        except CodecError as error:
            self.add(place, f"cannot be sent to a solution: it holds {error}")
            return False
        return True

    def defines(self, key: str, source: str, name: str) -> None:
        """A fault where Python source does not parse or does not define a name ("" for any program)."""
        tree = quietly(lambda: ast.parse(source))
        if tree is None:
            self.add(key, "is no valid Python")
        elif name and definition_of(Program(source, tree), name) == "none":
            self.add(key, f"does not define {name!r}")


def is_unicode(text: str) -> bool:
    """Whether a text can be written as UTF-8: JSON can spell halves of characters, which nothing takes."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def is_tolerance(value: Any) -> bool:
    """Whether a value is a number of at least 0 that a float can hold."""
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        return False
    try:
        return math.isfinite(value) and value >= 0
    except OverflowError:
        return False


def has_float(value: Any) -> bool:
    """Whether a builtin value holds a float anywhere."""
    if isinstance(value, float):
        return True
    if isinstance(value, Mapping):
        return any(has_float(item) for pair in value.items() for item in pair)
    return isinstance(value, (list, tuple, set, frozenset)) and any(has_float(item) for item in value)


def _shortened(text: str) -> str:
    flat = " ".join(text.split())
    return flat if len(flat) <= 60 else flat[:57] + "..."
