"""Contract: prefix cache, turns, cancelled neighbours, and what is left behind."""

from __future__ import annotations

import asyncio
import random

from pytest_ddtree.client.errors import ControlError
from pytest_ddtree.client.records import Record
from pytest_ddtree.exactness.contract.evidence import (
    Evidence,
    Gathering,
    Subject,
    ask,
    ask_all,
    greedy,
    of_length,
    taken,
)
from pytest_ddtree.exactness.prompts import Prompt, emitted_ids
from pytest_ddtree.servers.idle import live


async def warm_prefix(subject: Subject, *, count: int = 6) -> Evidence:
    """The same prompts cold, then with their prefix in the cache: both exact, the second ones really cached."""
    found = Gathering()
    await subject.client.flush_cache()
    prompts = subject.prompts[:count]
    alone = await ask(subject, prompts[0], subject.greedy())
    if found.check(alone, "after a flush") and alone.cached_tokens:
        found.problems.append(
            f"{prompts[0].tag}: {alone.cached_tokens} tokens came from a cache that was flushed before"
        )
    await subject.client.flush_cache()
    for turn in ("cold", "warm"):
        records = await ask_all(subject, prompts, subject.greedy(), concurrency=2)
        for prompt, record in zip(prompts, records, strict=True):
            if found.add(prompt, record, f"{turn} prefix") and turn == "warm":
                _cached(found, subject, record, len(prompt.ids) - 1, f"{prompt.tag} (asked again)")
    return found.evidence()


async def second_turn(subject: Subject, *, count: int = 4) -> Evidence:
    """A second turn upon the KV that the first one generated, then the same after a flush.

    The ids of prompt, answer and some more are sent, so the cache must hold what the verify steps left
    behind: this is where compaction faults show, because the first answer itself may be right.
    """
    found = Gathering()
    await subject.client.flush_cache()
    prompts = subject.prompts[:count]
    first = await ask_all(subject, prompts, subject.greedy(), concurrency=2)
    followed: list[tuple[Prompt, int]] = []
    branches: list[Prompt] = []
    for index, (prompt, record) in enumerate(zip(prompts, first, strict=True)):
        if found.add(prompt, record, "turn 1"):
            more = subject.prompts[(index + 1) % len(subject.prompts)].ids[:8]
            followed.append((Prompt(prompt.tag, (*prompt.ids, *emitted_ids(record), *more)), len(prompt.ids)))
            branches += _branches(subject, prompt, emitted_ids(record), more)
    # Before anything else, while the cache holds what the first turns left.
    for prompt, record in zip(
        branches, await ask_all(subject, branches, subject.greedy(4), concurrency=4), strict=True
    ):
        found.add(prompt, record, "turn 2 from inside the answer")
    turns = [prompt for prompt, _ in followed]
    for what in ("turn 2 on generated KV", "turn 2 after a flush"):
        if what.endswith("flush"):
            await subject.client.flush_cache()
        records = await ask_all(subject, turns, subject.greedy(), concurrency=2)
        for (prompt, own), record in zip(followed, records, strict=True):
            if found.add(prompt, record, what) and not what.endswith("flush"):
                answered = len(prompt.ids) - own - 8
                if answered > 2 * (subject.page_size or 1):
                    _cached(found, subject, record, own + 1, f"{prompt.tag} ({what})")
    return found.evidence()


def _branches(
    subject: Subject, prompt: Prompt, emitted: tuple[int, ...], more: tuple[int, ...], *, count: int = 8
) -> list[Prompt]:
    """Turns that leave the answer inside it: its cached KV is used up to there, so its order matters too."""
    chance = random.Random(subject.seed + len(prompt.ids))
    ends = sorted(chance.sample(range(1, len(emitted)), min(count, max(0, len(emitted) - 1))))
    return [Prompt(f"{prompt.tag} to {end}", (*prompt.ids, *emitted[:end], *more)) for end in ends]


def _cached(found: Gathering, subject: Subject, record: Record, least: int, what: str) -> None:
    """A problem unless at least `least` tokens, down to a page border, came from the cache."""
    page = subject.page_size or 1
    cached = record.cached_tokens
    if cached is None:
        note = "the server does not say how many tokens of a prompt were cached (cached_tokens)"
        if note not in found.notes:
            found.notes.append(note)
    elif cached < least // page * page - page:
        found.problems.append(f"{what}: {cached} tokens came from the cache, at least {least} should have")


async def shared_prefix_cancelled(subject: Subject, *, count: int = 8, prefix: int = 96) -> Evidence:
    """Requests that share a long prefix, every second one cancelled mid-stream: the others stay exact.

    In three waves, cancelled sooner and later, because when a request is mid-stream depends on the server.
    """
    found = Gathering()
    await subject.client.flush_cache()
    common = of_length(subject.prompts, prefix).ids
    prompts = [
        Prompt(f"{prompt.tag} behind a shared prefix", (*common, *prompt.ids))
        for prompt in taken(subject.prompts, count)
    ]
    chance = random.Random(subject.seed)
    for wave, longest_s in enumerate((0.05, 0.25, 0.8)):
        kept: list[tuple[Prompt, asyncio.Task[Record]]] = []
        cancelled: list[asyncio.Task[Record]] = []
        for index, prompt in enumerate(prompts):
            # The cancelled ones would run longest, so that they are mid-stream when they are broken off.
            output = subject.output * (6 if index % 2 else 2)
            task = asyncio.create_task(ask(subject, prompt, subject.greedy(output)))
            if index % 2:
                cancelled.append(task)
            else:
                kept.append((prompt, task))
        for task in cancelled:
            await asyncio.sleep(chance.uniform(0.1, 1.0) * longest_s)
            task.cancel()
        await asyncio.gather(*cancelled, return_exceptions=True)
        for prompt, task in kept:
            found.add(prompt, await task, f"neighbours cancelled, wave {wave + 1}")
    # The cancelled ones left their KV in the cache or in free pages; the next ones build on both.
    records = await ask_all(subject, prompts, subject.greedy(), concurrency=4)
    for prompt, record in zip(prompts, records, strict=True):
        found.add(prompt, record, "after the cancelling")
    return found.evidence()


async def after_burst(subject: Subject, *, count: int = 32) -> Evidence:
    """A burst of requests, all aborted: the answers after it are exact."""
    found = Gathering()
    long = greedy(4 * subject.output, ignore_eos=True)
    burst = [asyncio.create_task(ask(subject, prompt, long)) for prompt in taken(subject.prompts, count)]
    await asyncio.sleep(0.15)
    for task in burst[::2]:
        task.cancel()
    try:
        await subject.client.abort_all()
    except ControlError as error:
        found.notes.append(f"the server has no abort: {error}")
        for task in burst:
            task.cancel()
    await asyncio.gather(*burst, return_exceptions=True)
    prompts = subject.prompts[:6]
    records = await ask_all(subject, prompts, subject.greedy(), concurrency=3)
    for prompt, record in zip(prompts, records, strict=True):
        found.add(prompt, record, "after an aborted burst")
    return found.evidence()


async def after_eviction(subject: Subject, *, most: int = 40_000) -> Evidence:
    """Prompts answered, pushed out of the cache by others, and answered again: no stale KV is used.

    A cache of more than `most` tokens takes too long to fill and is left out.
    """
    capacity = subject.cache_tokens
    if capacity is None:
        return Evidence(skipped="the server does not say how many tokens its cache holds")
    if capacity > most:
        return Evidence(skipped=f"the cache holds {capacity} tokens, filling more than {most} takes too long")
    found = Gathering()
    prompts = subject.prompts[:4]
    # A cache may be smaller than the context that the model allows.
    room = min(subject.context_length or 4096, capacity)
    length = min(max(len(prompt.ids) for prompt in subject.prompts) * 4, room - 16)
    for what in ("before eviction", "after eviction"):
        if what.startswith("after"):
            fillers = [_filler(subject, index, length) for index in range(capacity // length + 2)]
            for record in await ask_all(subject, fillers, greedy(1), concurrency=4):
                found.check(record, "filling the cache")
        records = await ask_all(subject, prompts, subject.greedy(), concurrency=2)
        for prompt, record in zip(prompts, records, strict=True):
            found.add(prompt, record, what)
    return found.evidence()


def _filler(subject: Subject, index: int, length: int) -> Prompt:
    """A prompt that shares no prefix with the others: it starts somewhere inside."""
    ids = of_length(subject.prompts, length + index + 1, start=index).ids
    return Prompt(f"filler {index}", ids[index + 1 :])


async def idle_and_whole(subject: Subject, *, wait_s: float = 10.0) -> Evidence:
    """Afterwards the server is idle, its cache can be flushed, and no page of it is lost.

    Counts come from `/server_info` where it has those of this moment. Gauges of `/metrics` are not refreshed when nothing runs, so an
    idle SGLang may show old ones: there an accepted flush is the proof. A few more answers are judged, from an empty cache.
    """
    found = Gathering()
    try:
        await subject.client.flush_cache(timeout_s=wait_s)
        info = await subject.client.server_info()
    except ControlError as error:
        return Evidence(
            problems=(f"the server is not idle after all answers came, or cannot flush: {error}",)
        )
    load, capacity = live(info), info.get("max_total_num_tokens")
    if not load.known:
        found.notes.append("the server does not say what runs now: an accepted flush is all that was checked")
    if load.busy:
        found.problems.append(
            f"{load.running or 0} requests still run and {load.queued or 0} wait after all answers came"
        )
    elif load.free is not None and isinstance(capacity, int) and load.free < capacity:
        found.problems.append(
            f"{capacity - load.free} of {capacity} tokens of the flushed cache are still in use"
        )
    prompts = subject.prompts[:4]
    records = await ask_all(subject, prompts, subject.greedy(), concurrency=1)
    for prompt, record in zip(prompts, records, strict=True):
        found.add(prompt, record, "on an idle server")
    return found.evidence()
