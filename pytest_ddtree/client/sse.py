"""Server-sent events of a body that was received before, so that no work is done while tokens arrive."""

from __future__ import annotations

import re
from itertools import accumulate

_BOM = b"\xef\xbb\xbf"
# An end of line is CRLF, LF or CR; atomic groups keep a lone CRLF from being read as CR and then LF.
_BLANK = re.compile(rb"(?>\r\n|\n|\r)(?>\r\n|\n|\r)")
_LINE = re.compile(rb"\r\n|\n|\r")


Event = tuple[bytes, int]
"""Data of an event, and how many bytes of the body had come when it was complete."""


def split_events(body: bytes) -> tuple[list[Event], bytes]:
    """The complete events of an event stream, and the bytes after the last complete one.

    Source: the event-stream format of the HTML standard. Comments and events without data are left out.
    """
    if plain := _split_plain(body):
        return plain, b""
    offset = len(_BOM) if body.startswith(_BOM) else 0
    return _split_any(body, offset) if b"\r" in body else _split_lf(body, offset)


def _split_plain(body: bytes) -> list[Event] | None:
    """A whole body of nothing but one `data: ` line an event, which is what servers send; None for another."""
    if not (body.startswith(b"data: ") and body.endswith(b"\n\n")):
        return None
    blocks = body[6:-2].split(b"\n\ndata: ")
    if b"\r" in body or body.count(b"\n") != 2 * len(blocks):
        return None
    return list(zip(blocks, accumulate(len(block) + 8 for block in blocks), strict=True))


def _split_lf(body: bytes, offset: int) -> tuple[list[Event], bytes]:
    """Lines that end with LF only."""
    events: list[Event] = []
    blocks = (body[offset:] if offset else body).split(b"\n\n")
    rest = blocks.pop()
    for block in blocks:
        offset += len(block) + 2
        if block.startswith(b"data: ") and b"\n" not in block:
            events.append((block[6:], offset))
        else:
            _append(events, block, offset)
    return events, rest


def _split_any(body: bytes, offset: int) -> tuple[list[Event], bytes]:
    events: list[Event] = []
    while match := _BLANK.search(body, offset):
        _append(events, body[offset : match.start()], match.end())
        offset = match.end()
    return events, body[offset:]


def _append(events: list[Event], block: bytes, end: int) -> None:
    data: list[bytes] = []
    for line in _LINE.split(block):
        field, _, value = line.partition(b":")
        if field == b"data":
            data.append(value[1:] if value.startswith(b" ") else value)
    if data:
        events.append((b"\n".join(data), end))
