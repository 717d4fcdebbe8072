"""aiohttp, one line after the other and json, as sglang and vLLM read. Usage: aiohttp_lines.py URL STREAMS TOKENS"""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import aiohttp
from common import Stream, arguments, burst, report


async def main() -> None:
    url, streams, tokens = arguments()
    connector = aiohttp.TCPConnector(limit=0)
    timeout = aiohttp.ClientTimeout(total=None)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout, read_bufsize=1 << 20) as session:

        async def read(rid: str, body: dict[str, Any]) -> Stream:
            chunks: list[list[int]] = []
            sent = time.perf_counter_ns()
            async with session.post(url + "/generate", json=body) as response:
                async for line in response.content:
                    if line.startswith(b"data: {"):
                        at = time.perf_counter_ns()
                        chunks.append([at, json.loads(line[6:])["meta_info"]["completion_tokens"]])
            return {"rid": rid, "sent_ns": sent, "chunks": chunks}

        report(*await burst(streams, tokens, read))


asyncio.run(main())
