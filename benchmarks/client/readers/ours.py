"""This project's client. Usage: ours.py URL STREAMS TOKENS kernel|uvloop|asyncio"""

from __future__ import annotations

import asyncio
import sys
import time

from common import arguments, body_of, cpu_s, report

from pytest_ddtree.client.client import AsyncClient
from pytest_ddtree.client.records import Request, Sampling


async def run(mode: str) -> None:
    url, streams, tokens = arguments()
    async with AsyncClient(url, reader="kernel" if "kernel" in mode else "loop") as client:
        await client.prepare(streams)
        before, began = cpu_s(), time.perf_counter()
        sampling = Sampling(max_new_tokens=tokens, ignore_eos=True)
        requests = [
            Request(sampling=sampling, input_ids=tuple(body_of("", tokens)["input_ids"]), rid=f"r{number}")
            for number in range(streams)
        ]
        # As a load does it: what has come is decoded when all has come.
        answers = await asyncio.gather(*(client.ask(request) for request in requests))
        records = [answer.record() for answer in answers]
        cpu, wall = cpu_s() - before, time.perf_counter() - began
    failed = [record.error for record in records if not record.ok]
    if failed:
        raise SystemExit(failed[0])
    result = [
        {
            "rid": record.request.rid,
            "sent_ns": record.sent_ns,
            "chunks": [[chunk.at_ns, chunk.tokens] for chunk in record.chunks],
        }
        for record in records
    ]
    report(result, cpu, wall)


mode = sys.argv[4]
if "uvloop" in mode:
    import uvloop

    uvloop.run(run(mode))
else:
    asyncio.run(run(mode))
