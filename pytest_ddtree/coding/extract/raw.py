"""Code that stands in the answer without a fence: runs of lines that look like Python at module level."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from pytest_ddtree.coding.extract.budget import Work
from pytest_ddtree.coding.extract.lines import Lines, strip_invisible
from pytest_ddtree.coding.extract.model import Span
from pytest_ddtree.coding.extract.pystrings import triple_quote_after

#: A line that can start a statement. Prose starts with such words too, so a colon or bracket is asked for.
_STATEMENT: Final = re.compile(
    r"""(?:async\s+)?def\s+\w+\s*[(\[] | class\s+\w+\s*[(:\[] | @\w[\w.]*(?:\(|\s*$)
      | import\s+\w[\w.]*(?:\s+as\s+\w+)?(?:\s*,\s*\w[\w.]*(?:\s+as\s+\w+)?)*\s*(?:\#.*)?$
      | from\s+[\w.]+\s+import\s+[\w*(]
      | (?:if|elif|for|while|with|try|except|else|finally|async\s+(?:for|with))\b[^\#]*:\s*(?:\#.*)?$
      | (?:if|for|while)\b[^:]*:\s*\w[^()=]*[()=]
      | (?:print|input|sys\.|assert\s|raise\s|del\s|global\s)
      | [A-Za-z_][\w.]*+(?:\[[^\]]*\])?(?:\s*+,\s*+\w++)*+\s*+
        (?::\s*+[\w\[\], .|]++)?(?:[-+*/%&|^]|//|\*\*|>>|<<)?=(?!=)\s*\S
      | [A-Za-z_][\w.]*\([^)]*\)?\s*(?:\#.*)?$
      | \#(?!\#|\s*\*\*) | [)\]}] | (?:\"\"\"|''')
    """,
    re.VERBOSE,
)
_TAG_LINE: Final = re.compile(r"\s*(?:python3?|py|```\w*)\s*$", re.IGNORECASE)
_MAX_LINE: Final = 1_000


def raw_runs(lines: Lines, span: Span, work: Work) -> Iterator[Span]:
    """Character ranges of `span` that may be code, in order: maximal runs of code-like lines.

    A run's base is the indentation of its first line; deeper and blank lines belong to it, and so do lines
    inside a triple-quoted string. A lone language tag before the code is skipped.
    """
    text = lines.text
    start, end = span
    run_start: int | None = None
    run_end = start
    base = 0
    state: str | None = None
    for number in range(lines.at(start), lines.at(end) + 1):
        line_start, line_end = max(start, lines.start(number)), min(end, lines.end(number))
        if line_start >= end:
            break
        line = strip_invisible(text[line_start : min(line_end, line_start + _MAX_LINE)])
        work.scanned += len(line)
        body = line.lstrip()
        indent = len(line) - len(body)
        if state is None:
            if run_start is not None and (not body or indent > base):
                pass
            elif body and _STATEMENT.match(body) and not _TAG_LINE.match(line):
                if run_start is not None and indent < base:
                    yield run_start, run_end
                    run_start = None
                if run_start is None:
                    run_start, base = line_start, indent
            elif run_start is not None:
                yield run_start, run_end
                run_start = None
        if run_start is not None:
            state = triple_quote_after(text, line_start, line_end, state)
            if body:
                run_end = line_end
    if run_start is not None:
        yield run_start, run_end


def definition_pattern(name: str) -> re.Pattern[str]:
    """Matches the start of a line that defines `name`, whether or not the line is valid."""
    escaped = re.escape(name)
    return re.compile(
        rf"^[^\S\n]*(?:(?:async\s+)?def\s+{escaped}|class\s+{escaped}|{escaped}\s*=)", re.MULTILINE
    )


def shrunk(lines: Lines, run: Span, name: str) -> list[Span]:
    """Smaller ranges of a run around its last definition of `name`, larger ones last.

    The definition with its decorators and suite alone, then with what stands before it in the run.
    """
    text = lines.text
    first, last = lines.at(run[0]), lines.at(run[1])
    numbers = range(first, last + 1)
    starts = {number: max(run[0], lines.start(number)) for number in numbers}
    content = {n: strip_invisible(text[starts[n] : min(run[1], lines.end(n))]) for n in numbers}
    definition = definition_pattern(name)
    anchor = max((number for number in numbers if definition.match(content[number])), default=None)
    if anchor is None:
        return []
    base = len(content[anchor]) - len(content[anchor].lstrip())
    stop = anchor
    for number in range(anchor + 1, last + 1):
        line = content[number]
        if line.strip() and len(line) - len(line.lstrip()) <= base:
            break
        if line.strip():
            stop = number
    top = anchor
    while top > first and content[top - 1].lstrip().startswith("@"):
        top -= 1
    end = min(run[1], lines.end(stop))
    return [(starts[top], end), *([(run[0], end)] if top > first else [])]
