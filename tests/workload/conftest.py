"""Records made by hand, and the scripted server of the client's tests."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).parents[1] / "client"))

from scripted_server import Handler, ScriptedServer

from pytest_ddtree.client.records import Chunk, Record, Request, Sampling
from pytest_ddtree.client.sync import Client

Make = Callable[..., Record]
Open = Callable[..., tuple[ScriptedServer, Client]]


@pytest.fixture
def record() -> Make:
    """`record([(ms, tokens so far), ...])`: an answer with these arrivals after sending at `sent` ms."""

    def make(
        chunks: Sequence[tuple[float, int]],
        *,
        sent: float = 0.0,
        outcome: Any = "ok",
        ids: Sequence[int] = (),
        **meta: Any,
    ) -> Record:
        tokens = chunks[-1][1] if chunks else 0
        end = chunks[-1][0] if chunks else sent
        return Record(
            request=Request(sampling=Sampling(max_new_tokens=max(1, tokens)), input_ids=(1,), tag="made"),
            outcome=outcome,
            sent_ns=int(sent * 1e6),
            end_ns=int(end * 1e6),
            chunks=tuple(Chunk(int(at * 1e6), count) for at, count in chunks),
            output_ids=tuple(ids),
            error=None if outcome == "ok" else "broke",
            meta={"completion_tokens": tokens} | meta,
        )

    return make


@pytest.fixture
def serve() -> Iterator[Open]:
    with ExitStack() as stack:

        def make(handler: Handler, **options: Any) -> tuple[ScriptedServer, Client]:
            server = stack.enter_context(ScriptedServer(handler))
            return server, stack.enter_context(Client(server.url, **options))

        yield make
