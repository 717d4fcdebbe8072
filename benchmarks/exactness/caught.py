"""Plants one fault after the other into running embedded servers and asks the test meant for it."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import httpx

from benchmarks.exactness.embedded import (
    StartFailed,
    chain_arguments,
    make_prompts,
    server,
    subject,
    tree_arguments,
)
from benchmarks.exactness.planted import Planted
from pytest_ddtree.client.client import AsyncClient
from pytest_ddtree.client.records import Record
from pytest_ddtree.exactness.baseline import measure_floor
from pytest_ddtree.exactness.contract.catalogue import CONTRACT, judge_evidence
from pytest_ddtree.exactness.contract.evidence import Subject
from pytest_ddtree.exactness.floor import NoiseFloor
from pytest_ddtree.exactness.levels import collect
from pytest_ddtree.exactness.prompts import BaselineAnswers, Prompt
from pytest_ddtree.exactness.relations import acceptance, relations, window_relations
from pytest_ddtree.exactness.rule import FLOAT32, Rule
from pytest_ddtree.exactness.sampled import judged_samples
from pytest_ddtree.exactness.sampling import Samples, judge_samples
from pytest_ddtree.exactness.scores import Scores
from pytest_ddtree.grid import Config


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """How much is asked; the smaller, the cheaper and the less is seen."""

    prompts: int = 12
    output: int = 48
    long_output: int = 640
    sampled: int = 192
    compared_prompts: int = 24
    """Prompts and tokens of the relations between accept lengths."""
    compared_output: int = 96


class Servers:
    """Embedded servers that are started when first asked for and stopped together at the end."""

    def __init__(self, *common: str) -> None:
        self._common = common
        """Arguments that all of them have."""
        self._stack = ExitStack()
        self._urls: dict[tuple[str, ...], str] = {}

    def __enter__(self) -> Servers:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def url(self, *arguments: str) -> str:
        """The one server with these arguments."""
        if arguments not in self._urls:
            self._urls[arguments] = self._stack.enter_context(server(*self._common, *arguments))
        return self._urls[arguments]

    def planted(self, arguments: Sequence[str], *faults: str) -> str:
        """A server with these arguments and faults, its cache empty and its requests counted from one."""
        url = self.url(*arguments, "--plant-switch")
        body = {"plant": list(faults)}
        response = httpx.post(f"{url}/plant", json=body, timeout=60.0, trust_env=False, verify=False)
        if response.status_code != 200:
            raise RuntimeError(f"{', '.join(faults)} could not be planted: {response.text}")
        return url


@dataclass(slots=True, kw_only=True)
class Bench:
    """What one seed's faults are compared with: the baseline, its floor, and answers that several tests need."""

    servers: Servers
    baseline: AsyncClient
    answers: BaselineAnswers
    scores: Scores
    floor: NoiseFloor
    rule: Rule
    prompts: tuple[Prompt, ...]
    seed: int
    size: Size
    compared: dict[str, Mapping[str, Record]] = field(default_factory=dict)
    """Answers of healthy servers, by what they are compared for."""
    null: Samples | None = None


async def make_bench(
    servers: Servers,
    seed: int,
    size: Size,
    *,
    baseline: AsyncClient,
    rule: Rule = FLOAT32,
    concurrencies: Sequence[int] = (1, 8),
) -> Bench:
    """The floor of the baseline on the prompts of a seed."""
    prompts = make_prompts(seed, size.prompts)
    scores = Scores()
    answers, floor = await measure_floor(
        baseline,
        prompts,
        output=size.output,
        concurrencies=concurrencies,
        ignore_eos=True,
        known=scores,
    )
    return Bench(
        servers=servers,
        baseline=baseline,
        answers=answers,
        scores=scores,
        floor=floor,
        rule=rule,
        prompts=prompts,
        seed=seed,
        size=size,
    )


async def caught_by(test: str, under: Subject, bench: Bench, planted: Planted) -> str | None:
    """Why a test fails; None when it passes or skips."""
    if test == "sampling":
        return await _sampling(under, bench)
    if test == "relations":
        return await _relations(under, bench, planted)
    if test == "window":
        return await _window(under, bench, planted)
    evidence = await CONTRACT[test].procedure(under)
    if evidence.problems:
        return evidence.problems[0]
    verdict = await judge_evidence(
        evidence, bench.floor, bench.rule, config="b8", baseline=bench.baseline, scores=bench.scores
    )
    return None if verdict is None or verdict.passed else f"{verdict.kind}: {'; '.join(verdict.reasons)}"


async def _sampling(under: Subject, bench: Bench) -> str | None:
    output = bench.size.sampled
    if bench.null is None:
        bench.null = await judged_samples(
            bench.baseline, bench.baseline, bench.prompts, output=output, seed=1_000_003, steps=False
        )
    run = await judged_samples(under.client, bench.baseline, bench.prompts, output=output, seed=0)
    verdict = judge_samples(run, bench.null, config="b8")
    return None if verdict.passed else verdict.reasons[0]


async def _relations(under: Subject, bench: Bench, planted: Planted) -> str | None:
    """A tree against the chain."""
    output = bench.size.compared_output
    asked = make_prompts(bench.seed, bench.size.compared_prompts)
    if "chain" not in bench.compared:
        async with AsyncClient(bench.servers.url(*chain_arguments())) as chain:
            bench.compared["chain"] = await collect(
                chain, asked, output=output, concurrency=8, ignore_eos=True
            )
    seen = await collect(under.client, asked, output=output, concurrency=8, ignore_eos=True)
    tree = acceptance(Config("tree", planted.budget, 4), seen)
    found = relations([tree, acceptance(Config("chain"), bench.compared["chain"])], block_size=8)
    return next((relation.summary() for relation in found if relation.kind == "broken"), None)


async def _window(under: Subject, bench: Bench, planted: Planted) -> str | None:
    """A windowed server against one with the full context: a short window on long prompts, or a long one on
    short prompts."""
    assert planted.window is not None
    length = planted.window * 5 if planted.window < 100 else 100
    asked = tuple(Prompt(p.tag, (p.ids * 8)[:length]) for p in under.prompts)
    name = f"{length} tokens, budget {planted.budget}"
    if name not in bench.compared:
        url = bench.servers.planted(tree_arguments(budget=planted.budget))
        async with AsyncClient(url) as client:
            bench.compared[name] = await collect(client, asked, output=64, concurrency=4, ignore_eos=True)
    seen = await collect(under.client, asked, output=64, concurrency=4, ignore_eos=True)
    found = window_relations(
        acceptance(Config("tree", planted.budget, 4, planted.window), seen),
        acceptance(Config("tree", planted.budget, 4), bench.compared[name]),
        {prompt.tag: len(prompt.ids) for prompt in asked},
        output=64,
    )
    return next((relation.summary() for relation in found if relation.kind == "broken"), None)


async def one(name: str, planted: Planted, bench: Bench) -> dict[str, Any]:
    """One fault: which of its tests catches it, and why. The tests are tried until one does."""
    started = time.monotonic()
    caught: dict[str, str | None] = {}
    for test in planted.tests:
        try:
            with _faulty(planted, bench) as url:
                async with AsyncClient(url) as client:
                    under = subject(
                        client,
                        bench.prompts,
                        await client.server_info(),
                        seed=bench.seed,
                        output=bench.size.output,
                        long_output=bench.size.long_output,
                        window=planted.window,
                        deadline_s=planted.deadline_s,
                    )
                    caught[test] = None if test == "start" else await caught_by(test, under, bench, planted)
        except StartFailed as error:
            last = str(error).splitlines()[-1]
            caught[test] = f"does not start: {last}" if test == "start" else None
        if caught[test] is not None:
            break
    return {
        "fault": name,
        "seed": bench.seed,
        "caught": caught,
        "seconds": round(time.monotonic() - started, 1),
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
    }


@contextmanager
def _faulty(planted: Planted, bench: Bench) -> Iterator[str]:
    """The URL of a server with the fault in it."""
    arguments = [*tree_arguments(budget=planted.budget, window=planted.window), *planted.arguments]
    if planted.own:
        with server(*arguments, "--plant", planted.plant) as url:
            yield url
    else:
        yield bench.servers.planted(arguments, planted.plant)
