"""Values as short text, whatever they are: huge integers, lone surrogates, deep nests."""

from __future__ import annotations

import re
import reprlib
from typing import Any, Final

_MOST_CHARACTERS: Final = 1000
#: Control characters but tab and newline, lone surrogates, and what turns the direction of writing.
_UNPRINTABLE: Final = re.compile(
    "[\\x00-\\x08\\x0b-\\x1f\\x7f-\\x9f\\u202a-\\u202e\\u2066-\\u2069\\ud800-\\udfff]"
)
_LONG_INT_BITS: Final = 2000


class _Short(reprlib.Repr):
    def __init__(self) -> None:
        super().__init__()
        self.maxlevel = 8
        self.maxlist = self.maxtuple = self.maxdict = self.maxset = self.maxfrozenset = 60
        self.maxstring = self.maxother = 500

    def repr_int(self, x: int, level: int) -> str:
        if x.bit_length() > _LONG_INT_BITS:
            return f"<integer of {x.bit_length()} bits>"
        return repr(x)


def show(value: Any) -> str:
    """At most about a thousand characters, encodable as UTF-8."""
    text = _Short().repr(value)
    if len(text) > _MOST_CHARACTERS:
        text = text[: _MOST_CHARACTERS - 3] + "..."
    return text.encode("utf-8", "backslashreplace").decode()


def printable(text: str) -> str:
    """Text of a solution or of a problem file for a report: what would steer a terminal or cannot be encoded is written as an escape."""
    return _UNPRINTABLE.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def show_text(text: str) -> str:
    """A program's input or output: its beginning and end."""
    if len(text) > _MOST_CHARACTERS:
        half = _MOST_CHARACTERS // 2 - 10
        text = f"{text[:half]} [...] {text[-half:]}"
    return repr(text).encode("utf-8", "backslashreplace").decode()


def show_call(name: str, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> str:
    """A call as one would write it."""
    parts = [show(argument) for argument in arguments]
    parts += [f"{key}={show(item)}" for key, item in keywords.items()]
    text = f"{name}({', '.join(parts)})"
    return text if len(text) <= 2 * _MOST_CHARACTERS else text[: 2 * _MOST_CHARACTERS - 3] + "..."
