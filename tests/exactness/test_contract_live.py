"""The contract on the embedded server: a healthy one keeps every clause of it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from benchmarks.exactness.caught import Bench, Servers, Size, make_bench
from benchmarks.exactness.embedded import subject, tree_arguments
from pytest_ddtree.client.client import AsyncClient
from pytest_ddtree.exactness.contract.catalogue import CONTRACT, judge_evidence
from pytest_ddtree.exactness.contract.evidence import Subject
from pytest_ddtree.exactness.levels import collect, self_consistency
from pytest_ddtree.exactness.prompts import Prompt
from pytest_ddtree.exactness.sampled import NULL_SEEDS, judge_top_k, judged_samples, sample
from pytest_ddtree.exactness.sampling import judge_samples


@pytest.fixture(scope="module")
def servers() -> Iterator[Servers]:
    with Servers() as running:
        yield running


@pytest.fixture(scope="module")
async def bench(servers: Servers) -> AsyncIterator[Bench]:
    async with AsyncClient(servers.url()) as baseline:
        yield await make_bench(servers, 1, Size(), baseline=baseline)


@pytest.fixture(scope="module")
def asked(bench: Bench) -> tuple[Prompt, ...]:
    return bench.prompts


@pytest.fixture(scope="module")
async def healthy(servers: Servers, asked: tuple[Prompt, ...]) -> AsyncIterator[Subject]:
    async with AsyncClient(servers.url(*tree_arguments())) as client:
        yield subject(client, asked, await client.server_info())


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.slow] if n != "serial" else []) for n in CONTRACT]
)
async def test_a_healthy_server_keeps_every_clause(healthy: Subject, bench: Bench, name: str) -> None:
    evidence = await CONTRACT[name].procedure(healthy)
    assert evidence.problems == ()
    assert (evidence.skipped is None) is (name != "after-eviction")
    verdict = await judge_evidence(evidence, bench.floor, bench.rule, config="b8", baseline=bench.baseline)
    assert verdict is None or verdict.passed, verdict.reasons


async def test_the_first_token_after_a_cached_prefix_is_prefills(
    healthy: Subject, asked: tuple[Prompt, ...]
) -> None:
    """What level `self` rests on; `self_consistency` refuses the server otherwise."""
    records = await collect(healthy.client, asked[:1], output=12, concurrency=1, ignore_eos=True)
    (judged,) = await self_consistency(healthy.client, asked[:1], records)
    assert judged.tokens == 12
    assert judged.off == 0


@pytest.mark.slow
async def test_sampled_answers_of_a_healthy_server_are_samples(
    healthy: Subject, bench: Bench, asked: tuple[Prompt, ...]
) -> None:
    null = await judged_samples(
        bench.baseline, bench.baseline, asked, output=96, seed=NULL_SEEDS, steps=False
    )
    own = await judged_samples(healthy.client, bench.baseline, asked, output=96)
    verdict = judge_samples(own, null, config="b8")
    assert verdict.passed, verdict.reasons
    few = asked[:4]
    drawn = await sample(healthy.client, few, output=32, concurrency=8, temperature=1.6, top_k=3)
    assert await judge_top_k(bench.baseline, few, drawn, top_k=3, tolerance=1e-3) == ()
