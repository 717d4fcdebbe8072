"""Stock httpx, `aiter_lines` and json. Usage: httpx_lines.py URL STREAMS TOKENS"""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import httpx
from common import Stream, arguments, burst, report


async def main() -> None:
    url, streams, tokens = arguments()
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    async with httpx.AsyncClient(timeout=None, limits=limits, trust_env=False) as client:

        async def read(rid: str, body: dict[str, Any]) -> Stream:
            chunks: list[list[int]] = []
            sent = time.perf_counter_ns()
            async with client.stream("POST", url + "/generate", json=body) as response:
                async for line in response.aiter_lines():
                    if line.startswith("data: {"):
                        at = time.perf_counter_ns()
                        chunks.append([at, json.loads(line[6:])["meta_info"]["completion_tokens"]])
            return {"rid": rid, "sent_ns": sent, "chunks": chunks}

        report(*await burst(streams, tokens, read))


asyncio.run(main())
