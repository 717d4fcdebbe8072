"""This project's client. Usage: ours.py URL STREAMS TOKENS kernel|uvloop|asyncio"""

from __future__ import annotations

import asyncio
import sys
import time
from typing import Any

from common import Stream, arguments, burst, report

from pytest_ddtree.client.client import AsyncClient
from pytest_ddtree.client.records import Request, Sampling


async def run(mode: str) -> None:
    url, streams, tokens = arguments()
    async with AsyncClient(url, reader="kernel" if "kernel" in mode else "loop") as client:
        first_byte_cpu = time.process_time()
        await client.prepare(streams)

        async def read(rid: str, body: dict[str, Any]) -> Stream:
            sampling = Sampling(max_new_tokens=tokens, ignore_eos=True)
            record = await client.generate(
                Request(sampling=sampling, input_ids=tuple(body["input_ids"]), rid=rid)
            )
            if not record.ok:
                raise SystemExit(f"{rid}: {record.outcome}: {record.error}")
            return {"rid": rid, "sent_ns": record.sent_ns, "chunks": record.chunks}

        result, cpu, wall = await burst(streams, tokens, read)
    for stream in result:
        stream["chunks"] = [[chunk.at_ns, chunk.tokens] for chunk in stream["chunks"]]
    report(result, cpu, wall, start_cpu_s=first_byte_cpu)


mode = sys.argv[4]
if "uvloop" in mode:
    import uvloop

    uvloop.run(run(mode))
else:
    asyncio.run(run(mode))
