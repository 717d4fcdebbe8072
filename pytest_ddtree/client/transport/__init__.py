"""The transport for token streams: an `httpx.AsyncBaseTransport` over two kinds of readers."""

from __future__ import annotations

from pytest_ddtree.client.transport.connection import PeerClosed
from pytest_ddtree.client.transport.transport import (
    ARRIVALS,
    BODY,
    SENT,
    Heard,
    Reader,
    StreamTransport,
    choose_reader,
    origin_of,
    request_head,
)

__all__ = [
    "ARRIVALS",
    "BODY",
    "SENT",
    "Heard",
    "PeerClosed",
    "Reader",
    "StreamTransport",
    "choose_reader",
    "origin_of",
    "request_head",
]
