"""All pieces of code of an answer, in order: fenced blocks, tagged code, and code without any marks."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from pytest_ddtree.coding.extract.budget import MAX_TAGGED, Work
from pytest_ddtree.coding.extract.fences import Fenced, FenceScanner
from pytest_ddtree.coding.extract.lines import Lines
from pytest_ddtree.coding.extract.model import Block, Span
from pytest_ddtree.coding.extract.raw import raw_runs

_CODE_TAG: Final = re.compile(r"<(code|python|answer|solution)\b[^<>\n]{0,80}+>|\[(PYTHON)\]", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Candidate:
    """A block and its text as written, fence indentation removed.

    `python` is False for blocks tagged as another language: they are reported, never taken. `tagged` is
    True where the author said that it is code in Python. `interrupted` marks a fence that was left open.
    """

    block: Block
    text: str
    python: bool
    tagged: bool
    interrupted: bool = False
    end: int = 0


def marked_candidates(
    text: str, ranges: Sequence[Span], scanner: FenceScanner
) -> tuple[list[Candidate], list[Span]]:
    """Fenced and tagged code of the answer's ranges, and the gaps between them."""
    found: list[Candidate] = []
    gaps: list[Span] = []
    for start, end in ranges:
        start = max(start, scanner.seen_from)
        if start >= end:
            continue
        position = start
        for fenced in scanner.scan(start, end):
            line_start = max(position, _line_start(text, fenced.start, position))
            gaps.append((position, line_start))
            found.extend(_tagged(text, (position, line_start)))
            found.append(_from_fence(text, fenced))
            position = fenced.end
        gaps.append((position, end))
        found.extend(_tagged(text, (position, end)))
    found = _without_closing_tag(text, found)
    return found, [gap for gap in gaps if gap[0] < gap[1]]


def _line_start(text: str, offset: int, floor: int) -> int:
    """Where the line of a fence starts, if nothing but white space stands before the fence on it."""
    start = max(text.rfind("\n", floor, offset), text.rfind("\r", floor, offset)) + 1
    return start if start > floor and not text[start:offset].strip() else offset


def _from_fence(text: str, fenced: Fenced) -> Candidate:
    block = Block(
        span=(fenced.body_start, fenced.body_end),
        language=fenced.info.language,
        kind="inline" if fenced.inline else "fence",
        closed=fenced.closed or fenced.interrupted,
    )
    python = fenced.info.kind in ("python", "plain")
    return Candidate(
        block,
        fenced.text(text) if python else "",
        python,
        fenced.info.kind == "python",
        fenced.interrupted,
        fenced.end,
    )


def _without_closing_tag(text: str, found: list[Candidate]) -> list[Candidate]:
    """Some answers close a block with a second ```` ```python ````: an empty block at the very end."""
    if len(found) >= 2:
        last, before = found[-1], found[-2]
        if not last.block.closed and before.interrupted and not text[last.block.span[0] :].strip():
            return found[:-1]
    return found


def _tagged(text: str, gap: Span) -> Iterator[Candidate]:
    """``<code>...</code>`` and its like within text that has no fences."""
    position, end = gap
    stops: dict[str, int] = {}
    pieces: deque[tuple[int, int, str]] = deque(maxlen=MAX_TAGGED)
    for match in _CODE_TAG.finditer(text, position, end):
        name = match[1] or match[2]
        closing = f"</{name}>" if match[1] else f"[/{name}]"
        stop = stops.get(name, position)
        if 0 <= stop < match.end():
            stop = stops[name] = text.find(closing, match.end(), end)
        if stop < 0 or match.start() < position:
            continue
        inner = _CODE_TAG.search(text, match.end(), stop)
        if inner is None:
            position = stop + len(closing)
            pieces.append((match.end(), stop, name.lower()))
    for start, stop, name in pieces:
        block = Block((start, stop), name, "tag", closed=True)
        yield Candidate(block, text[start:stop], python=True, tagged=True, end=stop)


def raw_candidates(lines: Lines, gaps: Sequence[Span], work: Work) -> list[Candidate]:
    """Code without marks in the gaps, in order. `closed` is False where it runs up to the answer's end."""
    text = lines.text
    found: list[Candidate] = []
    last = max((end for _, end in gaps), default=0)
    for gap in gaps:
        for start, end in raw_runs(lines, gap, work):
            closed = bool(text[end:last].strip())
            block = Block((start, end), "", "raw", closed)
            found.append(Candidate(block, text[start:end], python=True, tagged=False, end=end))
    return found
