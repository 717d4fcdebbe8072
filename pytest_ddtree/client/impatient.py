"""A client that waits for a hung server once, not once per request."""

from __future__ import annotations

import time

from pytest_ddtree.client.client import AsyncClient
from pytest_ddtree.client.records import Record, Request


class ImpatientClient(AsyncClient):
    """After the first request that timed out, every further one has the outcome `timeout` at once.

    A procedure of sixty requests, one after the other, would otherwise wait sixty deadlines for a server that hangs.
    """

    _hung = False

    async def generate(
        self, request: Request, *, stream: bool = True, deadline_s: float | None = None
    ) -> Record:
        """See `AsyncClient.generate`."""
        if self._hung:
            now = time.perf_counter_ns()
            return Record(
                request=request,
                outcome="timeout",
                sent_ns=now,
                end_ns=now,
                error="not sent: an earlier request got no answer within its deadline",
            )
        record = await super().generate(request, stream=stream, deadline_s=deadline_s)
        self._hung = self._hung or record.outcome == "timeout"
        return record
