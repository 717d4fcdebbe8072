"""Server-sent events of a body that was received before, so that no work is done while tokens arrive."""

from __future__ import annotations

import re
from itertools import accumulate
from typing import NamedTuple

_BOM = b"\xef\xbb\xbf"
# An end of line is CRLF, LF or CR; atomic groups keep a lone CRLF from being read as CR and then LF.
_BLANK = re.compile(rb"(?>\r\n|\n|\r)(?>\r\n|\n|\r)")
_LINE = re.compile(rb"\r\n|\n|\r")


class Events(NamedTuple):
    """The complete events of an event stream, column by column: of one a stream there may be thousands."""

    data: list[bytes]
    ends: list[int]
    """How many bytes of the body had come when each was complete."""
    rest: bytes
    """The bytes after the last complete one."""


_Event = tuple[bytes, int]


def split_events(body: bytes) -> Events:
    """The complete events of an event stream.

    Source: the event-stream format of the HTML standard. Comments and events without data are left out.
    """
    if plain := _split_plain(body):
        return plain
    offset = len(_BOM) if body.startswith(_BOM) else 0
    events, rest = _split_any(body, offset) if b"\r" in body else _split_lf(body, offset)
    return Events([data for data, _ in events], [end for _, end in events], rest)


def _split_plain(body: bytes) -> Events | None:
    """A whole body of nothing but one `data: ` line an event, which is what servers send; None for another."""
    if not (body.startswith(b"data: ") and body.endswith(b"\n\n")):
        return None
    blocks = body[6:-2].split(b"\n\ndata: ")
    if b"\r" in body or body.count(b"\n") != 2 * len(blocks):
        return None
    return Events(blocks, list(accumulate(map(len(b"data: \n\n").__add__, map(len, blocks)))), b"")


def _split_lf(body: bytes, offset: int) -> tuple[list[_Event], bytes]:
    """Lines that end with LF only."""
    events: list[_Event] = []
    blocks = (body[offset:] if offset else body).split(b"\n\n")
    rest = blocks.pop()
    for block in blocks:
        offset += len(block) + 2
        if block.startswith(b"data: ") and b"\n" not in block:
            events.append((block[6:], offset))
        else:
            _append(events, block, offset)
    return events, rest


def _split_any(body: bytes, offset: int) -> tuple[list[_Event], bytes]:
    events: list[_Event] = []
    while match := _BLANK.search(body, offset):
        _append(events, body[offset : match.start()], match.end())
        offset = match.end()
    return events, body[offset:]


def _append(events: list[_Event], block: bytes, end: int) -> None:
    data: list[bytes] = []
    for line in _LINE.split(block):
        field, _, value = line.partition(b":")
        if field == b"data":
            data.append(value[1:] if value.startswith(b" ") else value)
    if data:
        events.append((b"\n".join(data), end))
