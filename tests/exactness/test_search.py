"""Schedules: run, judged, repeated, minimised; and the search over them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_ddtree.client.client import AsyncClient
from pytest_ddtree.exactness.floor import assumed_floor
from pytest_ddtree.exactness.fuzz import fuzz, traces
from pytest_ddtree.exactness.prompts import Prompt
from pytest_ddtree.exactness.rule import FLOAT32
from pytest_ddtree.exactness.search import AGAIN, confirm, random_trace, run_trace, trace_fails
from pytest_ddtree.exactness.trace import Step, Trace, ddmin

from .tableserver import TableServer, greedy

PROMPTS = [Prompt("a", tuple(range(1, 20))), Prompt("b", (7, 8, 9)), Prompt("c", (30, 31, 32, 33))]


def minimise(items: Sequence[int], wanted: set[int]) -> tuple[list[int], int]:
    asked = []

    async def fails(kept: Sequence[int]) -> bool:
        asked.append(tuple(kept))
        return wanted <= set(kept)

    found = asyncio.run(ddmin(items, fails))
    assert len(asked) == len(set(asked))
    return found, len(asked)


@given(st.integers(1, 40), st.data())
def test_ddmin_finds_exactly_what_is_needed(count: int, data: st.DataObject) -> None:
    wanted = data.draw(st.sets(st.integers(0, count - 1), min_size=1, max_size=5))
    found, asked = minimise(range(count), wanted)
    assert found == sorted(wanted)
    assert asked <= count * count + 3 * count + 1


@given(st.lists(st.integers(0, 9), min_size=1, max_size=25))
def test_ddmin_leaves_nothing_that_can_be_left_out(items: list[int]) -> None:
    async def fails(kept: Sequence[int]) -> bool:
        return sum(kept) % 7 == sum(items) % 7 and len(kept) > 0

    found = asyncio.run(ddmin(items, fails))
    assert asyncio.run(fails(found))
    for index in range(len(found)):
        rest = found[:index] + found[index + 1 :]
        assert not rest or not asyncio.run(fails(rest))


def test_ddmin_refuses_what_does_not_fail() -> None:
    with pytest.raises(ValueError, match="does not fail"):
        minimise([1, 2], {5})


@given(st.integers(0, 10_000))
def test_traces_are_sound_and_come_back_from_a_file(seed: int) -> None:
    trace = random_trace(PROMPTS, Random(seed))
    assert trace == trace.sound()
    assert trace.requests == 8
    assert all(step.request is None or step.request < 8 for step in trace.steps)


@pytest.mark.parametrize(
    "text", ["[" * 100_000, "{}", "[]", '{"steps": 3}', '{"steps": [{"ids": 1}]}', "", "\x00"]
)
def test_what_is_no_trace_is_refused_as_such(tmp_path: Path, text: str) -> None:
    (tmp_path / "trace.json").write_text(text, "utf-8")
    with pytest.raises(ValueError):
        Trace.load(tmp_path / "trace.json")


def test_a_trace_is_saved_and_loaded(tmp_path: Path) -> None:
    trace = random_trace(PROMPTS, Random(3))
    trace.save(tmp_path / "deep" / "t.json", why="because")
    assert Trace.load(tmp_path / "deep" / "t.json") == trace
    assert '"why": "because"' in (tmp_path / "deep" / "t.json").read_text()


def test_steps_without_their_request_are_left_out() -> None:
    steps = [Step(action="submit", request=1, ids=(1,), output=1), Step(action="cancel", request=0)]
    steps += [Step(action="wait", request=1), Step(action="wait"), Step(action="flush")]
    assert [step.action for step in Trace(tuple(steps)).sound().steps] == ["submit", "wait", "wait", "flush"]


async def test_a_trace_runs_and_gives_the_greedy_answers_to_judge() -> None:
    steps = (
        Step(action="submit", request=0, ids=PROMPTS[0].ids, output=9),
        Step(action="submit", request=1, ids=PROMPTS[1].ids, output=200),
        Step(action="submit", request=2, ids=PROMPTS[1].ids, output=5, temperature=1.0),
        Step(action="cancel", request=1),
        Step(action="wait", request=0),
        Step(action="flush"),
        Step(action="submit", request=3, ids=PROMPTS[2].ids, output=4, stream=False),
    )
    with TableServer() as server:
        async with AsyncClient(server.url) as client:
            ran = await run_trace(client, Trace(steps))
    assert [prompt.tag for prompt in ran.prompts] == ["request 0", "request 3"]
    assert list(ran.records["request 0"].output_ids) == greedy(PROMPTS[0].ids, 9)
    assert list(ran.records["request 3"].output_ids) == greedy(PROMPTS[2].ids, 4)
    assert ran.failures == ()
    assert server.flushes == 1


async def test_a_wait_before_any_request_waits_for_nothing() -> None:
    """What is left of a schedule while it is minimised may begin with one."""
    steps = (Step(action="wait"), Step(action="submit", request=0, ids=PROMPTS[0].ids, output=3))
    with TableServer() as server:
        async with AsyncClient(server.url) as client:
            ran = await run_trace(client, Trace(steps))
    assert list(ran.records["request 0"].output_ids) == greedy(PROMPTS[0].ids, 3)


async def test_an_error_of_the_minimiser_is_no_race(tmp_path: Path) -> None:
    trace = random_trace(PROMPTS, Random(5))

    async def fails(part: Trace) -> str | None:
        if part != trace:
            raise ValueError("a bug")
        return "broken"

    with pytest.raises(ValueError, match="a bug"):
        await confirm(trace, "broken", fails, folder=tmp_path)


async def test_a_request_that_ends_badly_is_a_failure_of_the_trace() -> None:
    with TableServer(speculative=True) as server:
        url = server.url
    async with AsyncClient(url) as client:
        ran = await run_trace(client, Trace((Step(action="submit", request=0, ids=(1,), output=2),)))
    assert len(ran.failures) == 1
    assert "request 0: reset" in ran.failures[0]


@pytest.mark.parametrize("with_baseline", [True, False])
async def test_a_schedule_fails_by_its_answers(with_baseline: bool) -> None:
    def spoil(ids: Sequence[int], at: int, right: int) -> int | None:
        return (right + 1) % 48 if len(ids) == 4 and at % 3 == 2 else None

    steps = [Step(action="submit", request=n, ids=PROMPTS[n].ids, output=40) for n in range(3)]
    floor = assumed_floor(float32=True)
    with TableServer() as base, TableServer(speculative=True, spoil=spoil) as tree:
        async with AsyncClient(base.url) as judge_client, AsyncClient(tree.url) as client:
            judge_by = judge_client if with_baseline else None
            broken = await trace_fails(client, Trace(tuple(steps)), floor, FLOAT32, baseline=judge_by)
            right = await trace_fails(client, Trace(tuple(steps[:2])), floor, FLOAT32, baseline=judge_by)
            nothing = await trace_fails(client, Trace((Step(action="flush"),)), floor, FLOAT32)
    assert right is None
    assert nothing is None
    assert broken is not None
    assert ("gap of" in broken) is with_baseline


async def test_a_reliable_failure_is_minimised_and_saved(tmp_path: Path) -> None:
    trace = random_trace(PROMPTS, Random(5), requests=6)
    needed = trace.steps[-1]

    async def fails(part: Trace) -> str | None:
        return "broken" if needed in part.steps else None

    failure = await confirm(trace, "broken", fails, folder=tmp_path)
    assert failure.again == AGAIN
    assert failure.smallest is not None
    assert needed in failure.smallest.steps
    assert len(failure.smallest.steps) <= 2
    assert Trace.load(tmp_path / "trace-smallest.json") == failure.smallest
    assert Trace.load(tmp_path / "trace.json") == trace
    assert f"1 of {len(trace.steps)} steps are enough" in failure.summary()


@pytest.mark.parametrize("every", [0, 2])
async def test_a_race_is_reported_with_how_often_it_came_again_and_not_minimised(
    tmp_path: Path, every: int
) -> None:
    runs = 0

    async def fails(part: Trace) -> str | None:
        nonlocal runs
        runs += 1
        return "broken" if every and runs % every == 0 else None

    failure = await confirm(random_trace(PROMPTS, Random(5)), "broken", fails, folder=tmp_path)
    assert failure.smallest is None
    assert failure.again == (5 if every else 0)
    assert f"failed again in {failure.again} of 10 runs" in failure.summary()
    assert runs == 10


def test_the_search_finds_a_failing_schedule_and_remembers_it(tmp_path: Path) -> None:
    def fails(trace: Trace) -> str | None:
        return "a cancel" if any(step.action == "cancel" for step in trace.steps) else None

    found = fuzz(fails, PROMPTS, examples=50, database=tmp_path)
    assert found is not None
    assert found[1] == "a cancel"
    calls: list[Trace] = []

    def once(trace: Trace) -> str | None:
        calls.append(trace)
        return fails(trace)

    assert fuzz(once, PROMPTS, examples=50, database=tmp_path) is not None
    assert len(calls) == 1


def test_the_search_ends_without_a_failure(tmp_path: Path) -> None:
    calls: list[Trace] = []
    assert fuzz(calls.append, PROMPTS, examples=12, database=tmp_path) is None
    assert len(calls) == 12


@given(traces(PROMPTS, requests=3))
def test_traces_have_the_size_that_was_asked_for(trace: Trace) -> None:
    assert 2 <= trace.requests <= 3
