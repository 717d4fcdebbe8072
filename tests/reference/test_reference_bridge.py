"""Between the engine's thread and the HTTP side: what the one counts and the other reads, and what ends first."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import partial

import pytest
from reference_harness import harness
from starlette.requests import Request

from pytest_ddtree.reference.engine import Engine
from pytest_ddtree.reference.http.answer import throughput
from pytest_ddtree.reference.http.bridge import Frontend, Outbox
from pytest_ddtree.reference.http.observations import Observations
from pytest_ddtree.reference.http.sse import unless_gone
from pytest_ddtree.reference.request import Update
from pytest_ddtree.reference.stops import Finish

UPDATE = Update((), 0, 0, 0, Finish("length"), None, 0, (), 0.0, 0.0)


class StubbornEngine:
    """Keeps what it is told, to carry it out when its pass is over."""

    def __init__(self):
        self.told = []

    def flush_cache(self, done):
        self.told.append(partial(done, True))


def test_a_pass_that_outlives_the_loop_ends_in_peace():
    """A server that is stopped waits half a second; what a longer pass has to say then is no crash."""
    engine = StubbornEngine()

    async def stopped_meanwhile():
        outbox = Outbox(asyncio.get_running_loop())
        flushing = asyncio.ensure_future(Frontend(engine, outbox, Observations()).flush_cache())
        await asyncio.sleep(0)
        flushing.cancel()
        return outbox

    outbox = asyncio.run(stopped_meanwhile())
    outbox.put(object(), UPDATE)
    outbox.flush()
    assert len(engine.told) == 1
    engine.told[0]()


class Passing(list):
    """A list whose reader is overtaken: the request goes to its next list just before its length is told."""

    def __init__(self, items, go_on):
        super().__init__(items)
        self.go_on = go_on

    def __len__(self):
        go_on, self.go_on = self.go_on, lambda: None
        go_on()
        return super().__len__()

    def __bool__(self):
        return super().__len__() > 0


@pytest.mark.parametrize("overtaken", ["waiting", "filling", "running"])
@pytest.mark.parametrize("first", ["waiting", "filling", "running"])
def test_a_request_on_its_way_is_counted(tiny, first, overtaken):
    """Whichever list it is in, and whichever list is being read when it moves on."""
    with harness(tiny) as running:
        engine = Engine(running.runtime, running.engine._tokenizer, on_crash=lambda _: None)
    scheduler = engine._scheduler
    order = ["waiting", "filling", "running"]
    following = order[(order.index(first) + 1) % 3]

    def go_on():
        getattr(scheduler, following).append("it")
        list.remove(getattr(scheduler, first), "it")

    for name in order:
        items = ["it"] if name == first else []
        setattr(scheduler, name, Passing(items, go_on if name == overtaken else lambda: None))
    assert sum(engine.occupancy) >= 1


def test_work_that_fails_gives_up_what_it_began():
    async def never():
        await asyncio.Event().wait()

    async def broken():
        raise ZeroDivisionError

    gone = []
    request = Request({"type": "http"}, receive=never)
    with pytest.raises(ZeroDivisionError):
        asyncio.run(unless_gone(request, broken(), lambda: gone.append(True)))
    assert gone == [True]


def test_the_rate_of_an_answer_is_that_of_the_tokens_behind_its_first():
    """Whether it was streamed or not: an answer that came whole was said to have taken a millisecond."""
    assert throughput(replace(UPDATE, completion_tokens=41, first_token_at=100.0), now=102.0) == 20.0
    assert throughput(replace(UPDATE, completion_tokens=1, first_token_at=100.0), now=102.0) == 0.0
    assert throughput(UPDATE, now=102.0) == 0.0
