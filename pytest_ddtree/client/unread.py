"""An answer that has come in full and has not been decoded."""

from __future__ import annotations

from dataclasses import dataclass

from pytest_ddtree.client import generate, openai
from pytest_ddtree.client.exchange import Exchange
from pytest_ddtree.client.records import Record, Request


@dataclass(frozen=True, slots=True)
class Unread:
    """What came back for a request, kept as bytes: decoding it while others arrive would make those late."""

    request: Request
    exchange: Exchange
    stream: bool
    openai: bool = False

    @property
    def size(self) -> int:
        """Bytes that it holds."""
        return len(self.exchange.body)

    @property
    def broken(self) -> bool:
        """Whether it broke off, timed out or was rejected; one that is whole may still turn out to be no good."""
        return self.exchange.fault is not None or self.exchange.status != 200

    def record(self) -> Record:
        """The decoded answer; never raises, whatever the bytes."""
        decode = openai.decode if self.openai else generate.decode
        return decode(self.request, self.exchange, stream=self.stream)
