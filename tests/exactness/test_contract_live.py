"""The contract on the embedded server: a healthy one keeps it, and each planted fault breaks the clause meant
for it."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from benchmarks.exactness.detection_matrix import MATRIX, Bench, one
from benchmarks.exactness.embedded import chain_arguments, make_prompts, server, subject, tree_arguments
from pytest_ddtree.client.client import AsyncClient
from pytest_ddtree.exactness.baseline import measure_floor
from pytest_ddtree.exactness.contract.catalogue import CONTRACT, judge_evidence
from pytest_ddtree.exactness.contract.evidence import Subject
from pytest_ddtree.exactness.levels import collect, self_consistency
from pytest_ddtree.exactness.prompts import Prompt
from pytest_ddtree.exactness.rule import FLOAT32
from pytest_ddtree.exactness.sampled import verify_sampling, verify_top_k

FAST = ("bonus_repeated", "logit_bias_ignored", "usage_off_by_one")
"""Faults of three kinds that are looked for in the fast tests; all others in the slow ones."""


@pytest.fixture(scope="module")
def asked() -> tuple[Prompt, ...]:
    return make_prompts(1, 12)


@pytest.fixture(scope="module")
async def bench(asked: tuple[Prompt, ...]) -> AsyncIterator[Bench]:
    with server() as url, server(*chain_arguments()) as chain_url:
        async with AsyncClient(url) as baseline, AsyncClient(chain_url) as chain:
            _, floor = await measure_floor(baseline, asked, output=48, concurrencies=(1, 8), ignore_eos=True)
            yield Bench(baseline, chain, floor, FLOAT32)


@pytest.fixture(scope="module")
async def healthy(asked: tuple[Prompt, ...]) -> AsyncIterator[Subject]:
    with server(*tree_arguments()) as url:
        async with AsyncClient(url) as client:
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
    verdict = await verify_sampling(healthy.client, bench.baseline, asked, config="b8", output=96)
    assert verdict.passed, verdict.reasons
    assert (
        await verify_top_k(
            healthy.client, bench.baseline, asked[:4], tolerance=1e-3, top_k=3, temperature=1.6, output=32
        )
        == ()
    )


@pytest.mark.parametrize(
    "fault", [*FAST, *[pytest.param(n, marks=pytest.mark.slow) for n in MATRIX if n not in FAST]]
)
async def test_each_planted_fault_breaks_the_clause_meant_for_it(
    bench: Bench, asked: tuple[Prompt, ...], fault: str
) -> None:
    row = await one(fault, MATRIX[fault], 1, asked, bench)
    assert any(row["caught"].values()), row["caught"]
