"""Is a place in Python source inside a triple-quoted string? One linear pass, no parser."""

from __future__ import annotations

import re
from typing import Final

_OPENING: Final = re.compile(
    r"""(?P<comment>\#[^\n\r]*)
      | (?P<triple>\"{3}|'{3})
      | \"(?:\\[^\n\r]|[^\"\\\n\r])*\"?
      | '(?:\\[^\n\r]|[^'\\\n\r])*'?
    """,
    re.VERBOSE,
)
_CLOSING: Final = {
    '"""': re.compile(r'\\.|"""', re.DOTALL),
    "'''": re.compile(r"\\.|'''", re.DOTALL),
}


def triple_quote_after(text: str, start: int, end: int, state: str | None) -> str | None:
    """The triple quote still open at `end`, given the one open at `start` (None: outside a string).

    Both offsets must be line boundaries. Wrong for text that is no Python; callers verify by parsing.
    """
    position = start
    while position < end:
        if state is None:
            for match in _OPENING.finditer(text, position, end):
                if match["triple"]:
                    state, position = match["triple"], match.end()
                    break
            else:
                return None
        else:
            for match in _CLOSING[state].finditer(text, position, end):
                if match[0] == state:
                    state, position = None, match.end()
                    break
            else:
                return state
    return state
