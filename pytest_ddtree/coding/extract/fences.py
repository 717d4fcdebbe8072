"""Fenced blocks of a response, found in one pass over its fence lines.

CommonMark decides what a fence is: its character, its length, its indentation, list and quote markers
before it. Four things that CommonMark does not do are needed for answers of language models, which is
why this is our own scanner and not markdown-it-py:

* a fence line inside a triple-quoted string of Python does not close the block (docstrings with examples);
* an opening fence with a language tag closes a block that was left open, and wrappers such as
  ```` ```markdown ```` are looked into;
* closing fences are recognised when something is glued to them (``return x``` ``, ``` ```<|im_end|>``);
* every position is a character offset of the untouched response, and scanning can start at any offset,
  because each end of a thinking section starts a new text.

What is well-formed is read as markdown-it-py reads it; tests compare the two.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from pytest_ddtree.coding.extract.budget import MAX_FENCE_LINES, Work
from pytest_ddtree.coding.extract.languages import Info, read_info
from pytest_ddtree.coding.extract.lines import Lines, normalize_newlines, strip_invisible
from pytest_ddtree.coding.extract.pystrings import triple_quote_after
from pytest_ddtree.coding.extract.source import Parser

_RUN: Final = re.compile(r"([`~])\1{2,}")
_CONTAINER: Final = re.compile(r"(?:[ \t]|>|[-*+](?=[ \t])|\d{1,9}[.)](?=[ \t]))*")
_QUOTE_OR_BLANK: Final = re.compile(r"[ \t>]*")
#: What a closing fence may have glued to it: special tokens, whole or cut, closing tags, punctuation.
_GLUED: Final = re.compile(r"(?:<[^<>\n]{0,60}+>?+|[.,;:!*_)\]}\s])*+")
#: Fence lines read on behind one that stood inside a string, while looking for where the block really ends.
_MAX_PASSED: Final = 8
_LOOKAHEAD_PARSES: Final = 4


@dataclass(frozen=True, slots=True)
class Fenced:
    """One block by offsets: the fence opens at `start`, the code is `body`, the fence ends at `end`."""

    start: int
    body_start: int
    body_end: int
    end: int
    info: Info
    inline: bool
    closed: bool
    interrupted: bool
    indent: int
    quotes: int

    def text(self, response: str) -> str:
        """The code with ``\\n`` newlines, the fence's indentation and quote marks removed as CommonMark does."""
        body = normalize_newlines(response[self.body_start : self.body_end])
        if self.quotes:
            body = re.sub(rf"^(?:[ \t]{{0,3}}>){{1,{self.quotes}}}", "", body, flags=re.MULTILINE)
        if self.indent:
            body = re.sub(rf"^[ \t]{{1,{self.indent}}}", self._outdented, body, flags=re.MULTILINE)
        return body

    def _outdented(self, white: re.Match[str]) -> str:
        """What is left of a line's white space once the fence's columns are taken off; tabs count 4."""
        columns = 0
        for used, character in enumerate(white[0], 1):
            columns = columns + 1 if character == " " else columns // 4 * 4 + 4
            if columns >= self.indent:
                return white[0][used:]
        return ""


@dataclass(frozen=True, slots=True)
class _FenceLine:
    """The first fence run of a line, seen from where the scanned range starts."""

    line: int
    start: int
    run_start: int
    run_end: int
    end: int
    prefix: str
    second: tuple[int, int] | None

    @property
    def length(self) -> int:
        return self.run_end - self.run_start

    @property
    def heads_line(self) -> bool:
        return _CONTAINER.fullmatch(self.prefix) is not None

    @property
    def indent(self) -> int:
        return len(self.prefix.expandtabs(4))


def _last_lines(numbers: list[int], most: int) -> int:
    """Index into ascending line numbers from which on at most `most` different ones are left."""
    if len(numbers) <= most:
        return 0
    different = sorted(set(numbers))
    return bisect_left(numbers, different[-most]) if len(different) > most else 0


class FenceScanner:
    """Finds blocks in ranges of one response."""

    def __init__(self, lines: Lines, parser: Parser, work: Work) -> None:
        self._text = lines.text
        self._lines = lines
        self._parser = parser
        self._work = work
        self._runs: list[tuple[int, list[tuple[int, int]]]] = []
        self._run_starts: list[int] = []
        spans = [match.span() for match in _RUN.finditer(self._text)]
        numbers = [lines.at(start) for start, _ in spans]
        first = _last_lines(numbers, MAX_FENCE_LINES)
        #: Offset before which fences were not looked at, because there are too many of them.
        self.seen_from = lines.start(numbers[first]) if first else 0
        for line, span in zip(numbers[first:], spans[first:], strict=True):
            if not self._runs or self._runs[-1][0] != line:
                self._runs.append((line, []))
            self._runs[-1][1].append(span)
            self._run_starts.append(span[0])
        self._line_numbers = [line for line, _ in self._runs]

    @property
    def run_count(self) -> int:
        """Number of runs of fence characters in the response."""
        return len(self._run_starts)

    def has_fence(self, start: int, end: int) -> bool:
        """Whether any run of fence characters starts in ``response[start:end]``."""
        index = bisect_left(self._run_starts, start)
        return index < len(self._run_starts) and self._run_starts[index] < end

    def scan(self, start: int, end: int) -> Iterator[Fenced]:
        """The blocks of ``response[start:end]`` in order, lazily; `start` counts as outside of a block."""
        index = bisect_left(self._line_numbers, self._lines.at(start))
        wrappers: list[_FenceLine] = []
        while index < len(self._runs):
            line = self._fence_line(index, start, end)
            index += 1
            if line is None:
                continue
            if line.start >= end:
                return
            if line.second is not None:
                yield from self._inline_blocks(index - 1, line, end)
                continue
            info = read_info(self._text[line.run_end : line.end])
            if not line.heads_line and not (info.known and info.kind == "python"):
                continue
            if wrappers and self._closes(line, wrappers[-1]):
                wrappers.pop()
                continue
            block, index, wraps = self._block(line, info, index, start, end)
            if wraps:
                wrappers.append(line)
            elif info.kind == "markdown":
                yield from self.scan(block.body_start, block.body_end)
            else:
                yield block

    def _fence_line(self, index: int, start: int, end: int) -> _FenceLine | None:
        line, runs = self._runs[index]
        self._work.fence_lines += len(runs)
        inside = [run for run in runs if start <= run[0] < end]
        if not inside:
            return None if runs[0][0] < end else _FenceLine(line, end, end, end, end, "", None)
        run_start, run_end = inside[0]
        line_start = max(start, self._lines.start(line))
        line_end = min(self._lines.end(line), end)
        self._work.scanned += line_end - line_start
        char = self._text[run_start]
        second = next((r for r in inside[1:] if self._text[r[0]] == char == "`"), None)
        prefix = strip_invisible(self._text[line_start:run_start])
        return _FenceLine(line, line_start, run_start, min(run_end, end), line_end, prefix, second)

    def _inline_blocks(self, index: int, line: _FenceLine, end: int) -> Iterator[Fenced]:
        """Spans such as ```` ```python f = abs``` ````: runs of one line, taken in pairs."""
        runs = [run for run in self._runs[index][1] if line.run_start <= run[0] < end]
        for opening, closing in zip(runs[::2], runs[1::2], strict=False):
            inside = self._text[opening[1] : closing[0]]
            info = read_info(inside)
            body_start = opening[1]
            if info.code_at is not None:
                body_start += info.code_at
            elif info.known:
                body_start += len(info.language) + inside.lower().find(info.language)
            yield Fenced(opening[0], body_start, closing[0], closing[1], info, True, True, False, 0, 0)

    def _block(
        self, opening: _FenceLine, info: Info, index: int, start: int, end: int
    ) -> tuple[Fenced, int, bool]:
        """The block opened by a line, the index behind it, and whether it only wraps other blocks."""
        python = info.kind in ("python", "plain")
        body_start = (
            opening.run_end + info.code_at
            if info.code_at is not None
            else min(self._lines.next_start(opening.line), end)
        )
        state: str | None = None
        read_to = body_start
        passed: tuple[_FenceLine, int, bool] | None = None
        passed_count = parses = 0
        at_end = False
        while index < len(self._runs):
            line = self._fence_line(index, start, end)
            index += 1
            if line is None or line.start < body_start:
                continue
            if line.start >= end:
                at_end = True
                break
            if python:
                self._work.scanned += line.start - read_to
                state = triple_quote_after(self._text, read_to, line.start, state)
                read_to = line.start
            interrupts = self._interrupts(line)
            if passed is not None:
                passed_count += 1
                if passed_count > _MAX_PASSED or self._work.exhausted:
                    break
            if state is not None:
                if passed is None and (interrupts or self._closes_block(line, opening)):
                    passed = (line, index, interrupts)
                continue
            if not (interrupts or self._closes_block(line, opening) or self._closes_glued(line, info)):
                continue
            if passed is not None:
                block = self._make(opening, info, body_start, line, interrupts)
                if interrupts or parses >= _LOOKAHEAD_PARSES:
                    break
                parses += 1
                if not self._reads(block):
                    continue
                return block, index, False
            block = self._make(opening, info, body_start, line, interrupts)
            wraps = interrupts and info.kind == "markdown"
            return block, index - 1 if interrupts else index, wraps
        else:
            at_end = True
        rest = self._make(opening, info, body_start, None, False, end)
        if passed is not None and not (at_end and state is None and self._reads(rest)):
            closing, index, interrupts = passed
            block = self._make(opening, info, body_start, closing, interrupts)
            return block, index - 1 if interrupts else index, False
        return rest, index, False

    def _reads(self, block: Fenced) -> bool:
        """Whether a block is Python."""
        self._work.scanned += block.body_end - block.body_start
        return self._parser.repaired(block.text(self._text)) is not None

    def _make(
        self,
        opening: _FenceLine,
        info: Info,
        body_start: int,
        closing: _FenceLine | None,
        interrupted: bool,
        end: int = 0,
    ) -> Fenced:
        quotes = opening.prefix.count(">")
        indent = opening.indent if opening.heads_line else 0
        if quotes:
            indent = len(opening.prefix.rpartition(">")[2].expandtabs(4))
        if closing is None:
            body_end = stop = end
        elif interrupted or closing.heads_line:
            body_end = closing.start
            stop = closing.start if interrupted else closing.run_end
        else:
            body_end, stop = closing.run_start, closing.run_end
        return Fenced(
            start=opening.run_start,
            body_start=min(body_start, body_end),
            body_end=body_end,
            end=stop,
            info=info,
            inline=False,
            closed=closing is not None and not interrupted,
            interrupted=interrupted,
            indent=indent,
            quotes=quotes,
        )

    def _closes(self, line: _FenceLine, opening: _FenceLine) -> bool:
        """A bare fence long enough for the opening one."""
        return (
            self._text[line.run_start] == self._text[opening.run_start]
            and line.length >= opening.length
            and line.second is None
            and _QUOTE_OR_BLANK.fullmatch(line.prefix) is not None
            and line.indent <= opening.indent + 3
            and self._ends_fence(line)
        )

    def _ends_fence(self, line: _FenceLine) -> bool:
        return _GLUED.fullmatch(strip_invisible(self._text[line.run_end : line.end])) is not None

    def _closes_block(self, line: _FenceLine, opening: _FenceLine) -> bool:
        """As `_closes`, and also a fence with prose behind it, which some models write on one line."""
        if self._closes(line, opening):
            return True
        return (
            self._text[line.run_start] == self._text[opening.run_start]
            and line.length >= opening.length
            and line.second is None
            and _QUOTE_OR_BLANK.fullmatch(line.prefix) is not None
            and line.indent <= opening.indent + 3
            and self._text[line.run_end : line.run_end + 1] in (" ", "\t", "\xa0")
            and not read_info(self._text[line.run_end : line.end]).known
        )

    def _closes_glued(self, line: _FenceLine, info: Info) -> bool:
        """A closing fence behind code on the same line (``return x``` ``), perhaps with prose behind it."""
        if (
            info.kind != "python"
            or line.heads_line
            or line.second is not None
            or self._text[line.run_start] != "`"
        ):
            return False
        if "#" in line.prefix or line.prefix.count('"') % 2 or line.prefix.count("'") % 2:
            return False
        return self._text[line.run_end : line.run_end + 1] in (" ", "\t") or self._ends_fence(line)

    def _interrupts(self, line: _FenceLine) -> bool:
        """An opening fence with a language tag: what was open before it was never closed."""
        return (
            line.heads_line and line.second is None and read_info(self._text[line.run_end : line.end]).known
        )
