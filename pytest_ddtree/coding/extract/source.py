"""From the text inside a block to a program that parses, repairing what copying broke."""

from __future__ import annotations

import ast
import html
import re
import textwrap
import threading
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, TypeVar

from pytest_ddtree.coding.extract.budget import MAX_BLOCK, Work
from pytest_ddtree.coding.extract.lines import normalize_newlines, strip_invisible

T = TypeVar("T")

_BLANK_LINES: Final = re.compile(r"(?:[^\S\n]*+\n)*+")
_ENTITY: Final = re.compile(r"&(?:lt|gt|amp|quot|apos|nbsp|#\d{2,4}|#x[0-9a-fA-F]{2,4});")
_ENTITY_NAMES: Final = frozenset({"lt", "gt", "amp", "quot", "apos", "nbsp"})
_TYPOGRAPHY: Final = str.maketrans(
    {
        "“": '"', "”": '"', "„": '"', "‟": '"', "＂": '"',
        "‘": "'", "’": "'", "‚": "'", "‛": "'", "＇": "'",
        "–": "-", "—": "-", "−": "-", "‐": "-", "‑": "-",
        "（": "(", "）": ")", "［": "[", "］": "]", "｛": "{", "｝": "}",
        "：": ":", "，": ",", "；": ";", "．": ".", "＝": "=", "＋": "+", "＊": "*", "／": "/", "％": "%",
        "＜": "<", "＞": ">", "！": "!",
    }
)  # fmt: skip
_TYPOGRAPHIC: Final = re.compile("[" + "".join(map(chr, _TYPOGRAPHY)) + "]")

# warnings.catch_warnings replaces module globals: two threads in it at once would leave wrong filters.
_WARNINGS_LOCK: Final = threading.Lock()


@dataclass(frozen=True, slots=True)
class Program:
    """Source that parses (``\\n`` newlines, one at the end) and its tree."""

    source: str
    tree: ast.Module


def quietly(function: Callable[[], T]) -> T | None:
    """The result of a call into Python's parser; None where it refuses the source for any reason.

    Besides SyntaxError the parser raises ValueError (null bytes), RecursionError and MemoryError (deep
    nesting), OverflowError (lone surrogates are UnicodeEncodeError, a ValueError). Warnings about the
    source, such as invalid escapes, are the model's and stay silent.
    """
    with _WARNINGS_LOCK, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return function()
        except (SyntaxError, ValueError, RecursionError, MemoryError, OverflowError):
            return None


class Parser:
    """ast.parse with a memory and with the limits of `Work`."""

    def __init__(self, work: Work) -> None:
        self._work = work
        self._programs: dict[str, Program | None] = {}

    def parse(self, source: str) -> Program | None:
        """`source` as a program, or None where it is no Python or too large to try."""
        if source not in self._programs:
            if not self._work.may_parse(len(source)):
                return None
            tree = quietly(lambda: ast.parse(source))
            self._programs[source] = None if tree is None else Program(source, tree)
        return self._programs[source]

    def repaired(self, text: str) -> Program | None:
        """The first of the repairs of `text` that parses; the text as it stands is tried first."""
        if len(text) > 2 * MAX_BLOCK or not self._work.can_parse:
            return None
        for source in _repairs(text):
            program = self.parse(source)
            if program is not None and not _is_escaped_html(program):
                return program if program.tree.body else None
        return None


def clean_edges(text: str) -> str:
    """`text` with ``\\n`` newlines, without blank lines at its ends, ending with one newline."""
    text = normalize_newlines(text)
    end = text.find("\n", len(text.rstrip()))
    first = _BLANK_LINES.match(text)
    return text[first.end() if first else 0 : end if end >= 0 else len(text)] + "\n"


def _repairs(text: str) -> Iterator[str]:
    """`text`, then `text` with one more kind of damage undone each time. Only what changes is yielded."""
    source = clean_edges(text)
    yield source
    seen = {source}
    for repair in (_visible, _flush_left, _unescaped, _plain_typography):
        source = repair(source)
        if source not in seen:
            seen.add(source)
            yield source


def _visible(source: str) -> str:
    return clean_edges(strip_invisible(source))


def _flush_left(source: str) -> str:
    return textwrap.dedent(source) if source[:1] in " \t" else source


def _unescaped(source: str) -> str:
    return strip_invisible(html.unescape(source)) if _ENTITY.search(source) else source


def _plain_typography(source: str) -> str:
    return source.translate(_TYPOGRAPHY) if _TYPOGRAPHIC.search(source) else source


def _is_escaped_html(program: Program) -> bool:
    """``a &lt; b`` parses as ``a & lt; b``: an entity name that the program never binds gives it away."""
    if not _ENTITY.search(program.source):
        return False
    loaded: set[str] = set()
    bound: set[str] = set()
    for node in ast.walk(program.tree):
        if isinstance(node, ast.Name) and node.id in _ENTITY_NAMES:
            (loaded if isinstance(node.ctx, ast.Load) else bound).add(node.id)
        elif isinstance(node, ast.arg):
            bound.add(node.arg)
    return bool(loaded - bound)
