"""A server that hangs is waited for once."""

from __future__ import annotations

import asyncio
import time

from pytest_ddtree.client.impatient import ImpatientClient
from pytest_ddtree.client.records import Request, Sampling


async def test_after_one_timeout_nothing_is_sent_any_more() -> None:
    connections = 0

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        await reader.read()
        writer.close()

    server = await asyncio.start_server(silent, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    request = Request(sampling=Sampling(max_new_tokens=4), input_ids=(1, 2))
    async with ImpatientClient(f"http://127.0.0.1:{port}") as client:
        first = await client.generate(request, deadline_s=0.3)
        seen = connections
        began = time.monotonic()
        others = [await client.generate(request, deadline_s=60) for _ in range(50)]
    assert first.outcome == "timeout"
    assert {record.outcome for record in others} == {"timeout"}
    assert all(record.error and "not sent" in record.error for record in others)
    assert connections == seen
    assert time.monotonic() - began < 60
    server.close()
    await server.wait_closed()
