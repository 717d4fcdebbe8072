"""Channel markup that some models write instead of thinking tags: which part is the final message.

``<|channel|>analysis<|message|>...<|end|><|start|>assistant<|channel|>final<|message|>...`` and the same
with its special tokens decoded away (``analysis...assistantfinal...``).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from pytest_ddtree.coding.extract.model import Span

_HEADER: Final = re.compile(
    r"<\|channel\|>\s*(?P<name>[a-z]+)"
    r"(?:[^<\n]{0,60}+(?:<\|constrain\|>[^<\n]{0,40}+)?<\|message\|>|(?:[^<\n]{0,60}+)?(?=<\|channel\|>)|)"
)
_MESSAGE_END: Final = re.compile(r"<\|(?:end|return|start|channel|call)\|>")
_BARE_START: Final = re.compile(r"\s*(?:assistant\s*)?(?:analysis|commentary)(?=[A-Z\d\"'`])")
_BARE_MAYBE: Final = re.compile(r"\s*(?:assistant\s*)?(?:analysis|commentary)")
_BARE_FINAL: Final = re.compile(r"(?:assistant\s{0,2}|<\|start\|>assistant)final(?![a-z])")
_QUOTE_WINDOW: Final = 200
_QUOTES: Final = "\"'`"


@dataclass(frozen=True, slots=True)
class Channels:
    """The final message's range (None: it never came) and the ranges before it."""

    final: Span | None
    analysis: tuple[Span, ...]


def split_channels(text: str) -> Channels | None:
    """The channels of a response, or None where it has no channel markup."""
    headers = [
        match
        for match in _HEADER.finditer(text)
        if not (text[match.start() - 1 : match.start()] in _QUOTES and match.start() and _quoted(text, match))
    ]
    if headers:
        return _from_headers(text, headers)
    return _from_bare(text)


def _quoted(text: str, match: re.Match[str]) -> bool:
    """A marker in quotes is spoken about."""
    mark = text[match.start() - 1]
    behind = text[match.end() : match.end() + _QUOTE_WINDOW].partition("\n")[0]
    return mark in behind


def _from_headers(text: str, headers: list[re.Match[str]]) -> Channels:
    last_final = next((match for match in reversed(headers) if match["name"] == "final"), None)
    if last_final is None:
        return Channels(None, ((0, len(text)),))
    start = last_final.end()
    end = len(text)
    for match in _MESSAGE_END.finditer(text, start):
        quoted = text[match.start() - 1] in _QUOTES and text[match.end() : match.end() + 1] in _QUOTES
        if not quoted or match.end() == len(text):
            end = match.start()
            break
    return Channels((start, end), ((0, last_final.start()),))


def _from_bare(text: str) -> Channels | None:
    if not _BARE_MAYBE.match(text):
        return None
    final = _BARE_FINAL.search(text)
    if final is not None:
        return Channels((final.end(), len(text)), ((0, final.start()),))
    return Channels(None, ((0, len(text)),)) if _BARE_START.match(text) else None
