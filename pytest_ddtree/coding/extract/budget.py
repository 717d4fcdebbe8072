"""Limits of the work that one extraction may do, whatever the response looks like."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

#: Longest piece of code that is parsed, in characters (about 3,000 lines).
MAX_BLOCK: Final = 100_000
#: Characters and calls of ast.parse in one extraction.
MAX_PARSE_CHARS: Final = 300_000
MAX_PARSE_CALLS: Final = 96
#: Fence lines, thinking tags and tagged pieces of code that are looked at. No answer comes near; of more
#: than these only the last ones count.
MAX_FENCE_LINES: Final = 4_000
MAX_TAGS: Final = 2_000
MAX_TAGGED: Final = 500
_PASSES: Final = 5


@dataclass(slots=True)
class Work:
    """Counts what an extraction did; scanners ask it whether they may go on.

    `fence_lines` counts visits of fence lines, `scanned` characters read by the string scanner, `tags`
    thinking tags looked at, `parsed` and `parse_calls` what went through ast.parse.
    """

    fence_lines: int = 0
    scanned: int = 0
    tags: int = 0
    parsed: int = 0
    parse_calls: int = 0
    fence_line_limit: int = 0
    scan_limit: int = 0

    def may_parse(self, size: int) -> bool:
        """Whether a source of `size` characters is still within the limits; counts it if so."""
        if size > MAX_BLOCK or self.parse_calls >= MAX_PARSE_CALLS or self.parsed + size > MAX_PARSE_CHARS:
            return False
        self.parse_calls += 1
        self.parsed += size
        return True

    @property
    def can_parse(self) -> bool:
        """False once the limits of parsing are used up."""
        return self.parse_calls < MAX_PARSE_CALLS and self.parsed < MAX_PARSE_CHARS

    def set_limits(self, characters: int, runs: int) -> None:
        """Allow a small multiple of what one pass over the response costs."""
        self.scan_limit = self.scanned + _PASSES * characters + 20_000
        self.fence_line_limit = self.fence_lines + _PASSES * runs + 1_000

    @property
    def exhausted(self) -> bool:
        """True where the response made the scanners read the same lines again and again."""
        return self.fence_lines > self.fence_line_limit or self.scanned > self.scan_limit
