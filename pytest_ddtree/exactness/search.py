"""Run schedules against a server, judge what comes back, and say how often a failure repeats.

Races do not replay, so nothing here shrinks by running once: a failing trace is saved, run again ten times,
and made smaller only when it fails nearly always.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from pytest_ddtree.client.client import AsyncClient
from pytest_ddtree.client.errors import ControlError
from pytest_ddtree.client.records import Record, Request, Sampling
from pytest_ddtree.exactness.floor import NoiseFloor
from pytest_ddtree.exactness.levels import self_consistency, teacher_force
from pytest_ddtree.exactness.prompts import Prompt
from pytest_ddtree.exactness.rule import Rule, judge
from pytest_ddtree.exactness.trace import NothingToMinimise, Step, Trace, ddmin

AGAIN = 10
RELIABLE = 8


@dataclass(frozen=True, slots=True)
class Ran:
    """What came of a trace: the greedy answers to judge, and the requests that ended otherwise than well."""

    prompts: tuple[Prompt, ...]
    records: dict[str, Record]
    failures: tuple[str, ...]


async def run_trace(client: AsyncClient, trace: Trace, *, deadline_s: float = 120.0) -> Ran:
    """Do the steps in order; every request still open at the end is awaited.

    A cancelled request is neither judged nor a failure. A flush that the server refuses because it is busy is
    none either.
    """
    running: dict[int, asyncio.Task[Record]] = {}
    submitted: dict[int, Step] = {}
    cancelled: set[int] = set()

    async def send(number: int, step: Step) -> Record:
        sampling = Sampling(
            max_new_tokens=step.output,
            temperature=step.temperature,
            seed=number,
            ignore_eos=step.ignore_eos,
            extra=dict(step.extra),
        )
        request = Request(sampling=sampling, input_ids=step.ids, tag=f"request {number}")
        return await client.generate(request, stream=step.stream, deadline_s=deadline_s)

    try:
        for step in trace.sound().steps:
            number = step.request
            if step.action == "submit" and number is not None:
                submitted[number] = step
                running[number] = asyncio.create_task(send(number, step))
                await asyncio.sleep(step.delay_s)
            elif step.action == "cancel" and number is not None:
                await asyncio.sleep(step.delay_s)
                if not running[number].done():
                    running[number].cancel()
                    cancelled.add(number)
            elif step.action == "wait":
                await asyncio.gather(
                    *(running.values() if number is None else [running[number]]), return_exceptions=True
                )
            elif step.action == "flush":
                await _flush(client)
        await asyncio.gather(*running.values(), return_exceptions=True)
    finally:
        for task in running.values():
            task.cancel()
        await asyncio.gather(*running.values(), return_exceptions=True)
    return _ran(submitted, {n: task for n, task in running.items() if n not in cancelled})


async def _flush(client: AsyncClient) -> None:
    try:
        await client.flush_cache(timeout_s=0.0)
    except ControlError as error:
        if error.status != 400:
            raise


def _ran(submitted: dict[int, Step], finished: dict[int, asyncio.Task[Record]]) -> Ran:
    prompts, records, failures = [], {}, []
    for number, task in finished.items():
        record, step = task.result(), submitted[number]
        tag = f"request {number}"
        if not record.ok:
            failures.append(f"{tag}: {record.outcome}: {record.error}")
        elif step.judged or (step.temperature == 0.0 and not step.extra):
            prompts.append(Prompt(tag, step.ids))
            records[tag] = record
    return Ran(tuple(prompts), records, tuple(failures))


async def trace_fails(
    client: AsyncClient,
    trace: Trace,
    floor: NoiseFloor,
    rule: Rule,
    *,
    baseline: AsyncClient | None = None,
    deadline_s: float = 120.0,
) -> str | None:
    """Why a trace fails, in words: a request that ended badly, or answers beyond the floor; None if neither.

    Judged by the live `baseline`, else by the server's own prefill (level self). Begins with a flushed cache: what an earlier
    run spoilt and left there must not count for this one.
    """
    await _flush(client)
    ran = await run_trace(client, trace, deadline_s=deadline_s)
    if ran.failures:
        return ran.failures[0]
    if not ran.prompts:
        return None
    if baseline is not None:
        judged = await teacher_force(baseline, ran.prompts, ran.records, concurrency=8)
        verdict = judge(judged, floor, rule, config="schedule", level="full")
    else:
        judged = await self_consistency(client, ran.prompts, ran.records)
        verdict = judge(judged, floor, rule, config="schedule", level="self")
    return "; ".join(verdict.reasons) if verdict.kind == "corrupt" else None


Fails = Callable[[Trace], Awaitable[str | None]]
"""Runs a trace and says in words why it failed; None when it did not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """A trace that failed at least once."""

    trace: Trace
    why: str
    again: int
    """How often it failed when it was run `AGAIN` times more."""
    smallest: Trace | None
    """The minimised trace, where it fails reliably enough to be minimised."""
    path: Path | None

    def summary(self) -> str:
        """What happened, for people. A failure that never came again is a failure all the same."""
        repeats = f"failed again in {self.again} of {AGAIN} runs"
        small = ""
        if self.smallest is not None:
            small = f"; {len(self.smallest.steps)} of {len(self.trace.steps)} steps are enough"
        saved = f"; saved as {self.path}" if self.path is not None else ""
        return f"{self.why} ({repeats}{small}{saved})"


async def confirm(
    trace: Trace, why: str, fails: Fails, *, folder: Path | None = None, name: str = "trace"
) -> Failure:
    """Save a failing trace, run it ten times more, and minimise it when it fails in at least eight of them.

    What is saved in the end is the smallest trace found; the whole one stays beside it.
    """
    path = None if folder is None else folder / f"{name}.json"
    if path is not None:
        trace.save(path, why=why)
    again = 0
    for _ in range(AGAIN):
        again += await fails(trace) is not None
    smallest = None
    if again >= RELIABLE:

        async def still(steps: Sequence[Step]) -> bool:
            # Two runs, because one in five of such a trace does not fail and must not look innocent.
            part = Trace(tuple(steps)).sound()
            return await fails(part) is not None or await fails(part) is not None

        try:
            smallest = Trace(tuple(await ddmin(trace.steps, still))).sound()
        except NothingToMinimise:
            # It failed ten times and not in the first two runs of the minimiser: a race after all.
            smallest = None
        if smallest is not None and folder is not None:
            path = folder / f"{name}-smallest.json"
            smallest.save(path, why=why, again=again)
    return Failure(trace=trace, why=why, again=again, smallest=smallest, path=path)


def random_trace(
    prompts: Sequence[Prompt], chance: random.Random, *, requests: int = 8, output: int = 48
) -> Trace:
    """A schedule over these prompts: ragged outputs, shared and turned prefixes, cancels, flushes, waits."""
    steps: list[Step] = []
    open_requests: list[int] = []
    for number in range(requests):
        prompt = chance.choice(list(prompts))
        ids = prompt.ids
        if chance.random() < 0.4:
            ids = (*prompts[0].ids[: chance.randint(1, len(prompts[0].ids))], *ids)
        sampled = chance.random() < 0.2
        steps.append(
            Step(
                action="submit",
                request=number,
                ids=ids,
                output=chance.choice([1, 2, 3, 7, 8, 9, output // 2, output]),
                stream=chance.random() < 0.8,
                temperature=1.0 if sampled else 0.0,
                delay_s=chance.choice([0.0, 0.0, 0.002, 0.02]),
            )
        )
        open_requests.append(number)
        roll = chance.random()
        if roll < 0.25:
            victim = open_requests.pop(chance.randrange(len(open_requests)))
            steps.append(Step(action="cancel", request=victim, delay_s=chance.choice([0.0, 0.005, 0.03])))
        elif roll < 0.35:
            steps.append(Step(action="wait"))
            steps.append(Step(action="flush"))
            open_requests.clear()
        elif roll < 0.5:
            steps.append(Step(action="wait", request=chance.choice(open_requests)))
    return Trace(tuple(steps)).sound()
