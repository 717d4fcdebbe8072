"""The transport for token streams: an `httpx.AsyncBaseTransport` over two kinds of readers."""

from __future__ import annotations

from pytest_ddtree.client.transport.connection import PeerClosed
from pytest_ddtree.client.transport.transport import (
    ARRIVALS,
    BODY,
    SENT,
    WHOLE,
    Reader,
    StreamTransport,
    choose_reader,
)

__all__ = ["ARRIVALS", "BODY", "SENT", "WHOLE", "PeerClosed", "Reader", "StreamTransport", "choose_reader"]
