"""Lines and invisible characters of a response, by character offset."""

from __future__ import annotations

import re
from bisect import bisect_right
from itertools import accumulate
from typing import Final

#: Python's and CommonMark's line ends. Not str.splitlines(): that also splits at form feeds and U+2028.
_NEWLINE: Final = re.compile(r"\r\n|\n|\r")
#: Zero-width characters, byte order marks, soft hyphens, text direction marks.
_ZERO_WIDTH: Final = re.compile("[\u00ad\u200b-\u200f\u202a-\u202e\u2060-\u2064\u2066-\u2069\ufeff]")
_ANSI: Final = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]{0,200}(?:\x07|\x1b\\)|[@-Z\\^_])")
_ODD_SPACE: Final = re.compile("[\u00a0\u1680\u2000-\u200a\u202f\u205f\u3000]")
_ODD_NEWLINE: Final = re.compile("[\u0085\u2028\u2029]")


class Lines:
    """Where the lines of `text` start and end, found in one pass."""

    def __init__(self, text: str) -> None:
        self.text = text
        if "\r" in text:
            spans = [match.span() for match in _NEWLINE.finditer(text)]
            self._starts = [0, *(end for _, end in spans)]
            self._ends = [*(start for start, _ in spans), len(text)]
        else:
            lengths = [len(line) + 1 for line in text.split("\n")]
            self._starts = [0, *accumulate(lengths)]
            self._starts.pop()
            self._ends = [start + length - 1 for start, length in zip(self._starts, lengths, strict=True)]

    def __len__(self) -> int:
        return len(self._starts)

    def at(self, offset: int) -> int:
        """Index of the line that holds `offset` (a line end belongs to the line it ends)."""
        return bisect_right(self._starts, offset) - 1

    def start(self, line: int) -> int:
        """Offset of the first character of a line."""
        return self._starts[line]

    def end(self, line: int) -> int:
        """Offset behind the last character of a line, its line end excluded."""
        return self._ends[line]

    def next_start(self, line: int) -> int:
        """Offset at which the following line starts; the text's length behind the last line."""
        return self._starts[line + 1] if line + 1 < len(self._starts) else len(self.text)


def normalize_newlines(text: str) -> str:
    """`text` with every line end written as ``\\n``."""
    return _NEWLINE.sub("\n", text) if "\r" in text else text


def strip_invisible(text: str) -> str:
    """`text` without ANSI escapes and zero-width characters; odd spaces become ordinary ones."""
    if text.isascii():
        return _ANSI.sub("", text) if "\x1b" in text else text
    text = _ZERO_WIDTH.sub("", _ANSI.sub("", text))
    return _ODD_NEWLINE.sub("\n", _ODD_SPACE.sub(" ", text))
