"""Thousands of requests to a server that fails in every way at random: nothing leaks, nothing is mistaken."""

from __future__ import annotations

import asyncio
import os
import random
from typing import Any

import pytest
from scripted_server import HEAD, Asked, Script, chunk, generate_events, plain, sse, stream

from pytest_ddtree.client.records import Record, Request, Sampling

EVENTS = generate_events(
    [[5], [6, 7], [8]], finish={"type": "length", "length": 4}, meta={"spec_verify_ct": 2}
)
FATES: dict[str, Script] = {
    "ok": stream(EVENTS),
    "cut": stream(EVENTS[:2]),
    "reset": stream(EVENTS[:2], last=False, end="reset"),
    "rejected": plain(503, b'{"message": "full"}'),
    "malformed": Script([(0.0, HEAD + chunk(b"data: {\n\n") + b"0\r\n\r\n")]),
    "error_event": stream([sse({"error": {"message": "dead"}})]),
    "timeout": Script([(0.0, HEAD)], "hang"),
}


@pytest.mark.soak
@pytest.mark.slow
def test_thousands_of_requests_with_every_fate_leave_nothing_behind(connect: Any) -> None:
    server, client = connect(lambda asked: FATES[fate_of(asked)])

    def fate_of(asked: Asked) -> str:
        return str(asked.json["rid"]).split("-")[0]

    async def hammer(rounds: int) -> list[tuple[str, Record]]:
        rng = random.Random(rounds)
        answers: list[tuple[str, Record]] = []
        for number in range(rounds):
            fates = rng.choices(list(FATES), weights=[20, 2, 2, 2, 2, 2, 1], k=32)
            requests = [
                Request(sampling=Sampling(max_new_tokens=4), input_ids=(1,), rid=f"{fate}-{number}-{index}")
                for index, fate in enumerate(fates)
            ]
            records = await asyncio.gather(
                *(client.asynchronous.generate(request, deadline_s=2.0) for request in requests)
            )
            answers += zip(fates, records, strict=True)
        return answers

    client.loop.run(hammer(3))
    before = len(os.listdir("/proc/self/fd"))
    answers = client.loop.run(hammer(60))
    assert len(answers) == 60 * 32
    assert [(fate, record.error) for fate, record in answers if record.outcome != fate] == []
    # The server's side of a connection goes a moment after the client's.
    client.loop.run(asyncio.sleep(0.5))
    assert len(os.listdir("/proc/self/fd")) <= before + 64
    assert server.connections < 63 * 32
