"""Splitting an answer into what the model thought and what it said."""

from __future__ import annotations

from dataclasses import dataclass

OPEN, CLOSE = "<think>", "</think>"
PARSERS = {"qwen3": False, "qwen3-thinking": True, "deepseek-r1": True}
"""Parser name -> whether an answer starts inside the thinking section without a marker."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Text that became certain: thinking and answer part."""

    reasoning: str
    content: str


class ReasoningSplitter:
    """Feed text as it comes; a possible start of a marker at its end is held back."""

    def __init__(self, parser: str, *, thinking_off: bool = False) -> None:
        self._pending = ""
        self._inside = PARSERS[parser] and not thinking_off
        self._opened = self._inside
        self._closed = thinking_off

    def push(self, text: str, *, last: bool = False) -> Piece:
        self._pending += text
        reasoning: list[str] = []
        content: list[str] = []
        while self._pending:
            if not self._opened and not self._closed:
                stripped = self._pending.lstrip()
                if stripped.startswith(OPEN):
                    self._pending = stripped[len(OPEN) :]
                    self._opened = self._inside = True
                    continue
                if OPEN.startswith(stripped) and not last:
                    break
                self._closed = True
            if not self._inside:
                content.append(self._pending)
                self._pending = ""
                break
            before, marker, behind = self._pending.partition(CLOSE)
            if marker:
                reasoning.append(before)
                self._pending, self._inside, self._closed = behind, False, True
                continue
            hold = 0 if last else _marker_start(self._pending, CLOSE)
            cut = len(self._pending) - hold
            reasoning.append(self._pending[:cut])
            self._pending = self._pending[cut:]
            break
        return Piece("".join(reasoning), "".join(content))


def _marker_start(text: str, marker: str) -> int:
    """Length of the longest end of ``text`` that starts ``marker``."""
    for length in range(min(len(marker) - 1, len(text)), 0, -1):
        if text.endswith(marker[:length]):
            return length
    return 0
