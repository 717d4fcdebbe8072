"""Fixtures: a scripted server and a client of it, once for each kind of reader."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from scripted_server import Handler, Script, ScriptedServer

from pytest_ddtree.client.loop import LoopThread
from pytest_ddtree.client.records import Request, Sampling
from pytest_ddtree.client.sync import Client
from pytest_ddtree.client.transport import Reader
from pytest_ddtree.client.transport.stamps import stamps_available

Pair = tuple[ScriptedServer, Client]
Connect = Callable[..., Pair]


@pytest.fixture(params=["kernel", "loop", "uvloop"])
def connect(request: pytest.FixtureRequest) -> Iterator[Connect]:
    """`connect(script or handler)` -> (server, client), for every kind of reader that this machine has."""
    reader = request.param
    if reader == "kernel" and not stamps_available():
        pytest.skip("this kernel does not stamp what arrives on a socket")
    loop = LoopThread()
    if reader == "uvloop":
        loop = LoopThread(pytest.importorskip("uvloop").new_event_loop)
        reader = "loop"
    with ExitStack() as stack:
        yield _maker(stack, loop, reader)


@pytest.fixture
def dial() -> Iterator[Connect]:
    """`connect` with the reader that the client chooses by itself."""
    with ExitStack() as stack:
        yield _maker(stack, LoopThread(), "auto")


def _maker(stack: ExitStack, loop: LoopThread, reader: Reader) -> Connect:
    stack.enter_context(loop)

    def make(answer: Script | Handler, **options: Any) -> Pair:
        handler: Handler = (lambda asked: answer) if isinstance(answer, Script) else answer
        server = stack.enter_context(ScriptedServer(handler))
        client = stack.enter_context(Client(server.url, reader=reader, loop=loop, **options))
        return server, client

    return make


@pytest.fixture
def ask() -> Callable[..., Request]:
    """A request for four tokens after the prompt 1 2 3 4."""

    def make(tokens: int = 4, *, text: str | None = None, **sampling: Any) -> Request:
        ids = None if text else (1, 2, 3, 4)
        return Request(
            sampling=Sampling(max_new_tokens=tokens, **sampling), input_ids=ids, text=text, tag="one"
        )

    return make
