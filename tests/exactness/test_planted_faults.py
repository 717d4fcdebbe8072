"""Every planted fault once, caught by the test meant for it, on embedded servers into which faults are planted in turn."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from dataclasses import replace

import httpx
import pytest

from benchmarks.exactness.caught import Bench, Servers, Size, caught_by, make_bench, one
from benchmarks.exactness.embedded import subject, tree_arguments
from benchmarks.exactness.planted import MATRIX, Planted
from pytest_ddtree.client.client import AsyncClient
from pytest_ddtree.exactness.contract.catalogue import CONTRACT
from pytest_ddtree.reference.faults import catalogue

SMALL = Size(prompts=6, output=24, long_output=200, sampled=48)
SOONER = {
    # Answers are short here, so what comes every so often must come sooner.
    "hang_mid_stream": "hang_mid_stream:2",
    "long_context": "long_context:120",
    "rare_token": "rare_token:20",
    "wrong_kv_slot": "wrong_kv_slot:4",
}
SLOW = {
    "accept_decays": "a fall of the accept length needs rounds of many verify steps",
    "branches_dead": "a paired interval of accept lengths needs 24 prompts, on a wide tree and on the chain",
    "coin_reused": "a random number used twice shows among a thousand sampled tokens",
    "window_off_by_page": "a paired interval of accept lengths needs 12 prompts, on two servers",
}
"""Faults that cannot be seen cheaply, and why."""
NO_MATRIX = {"slower": "the speed gate's", "rounding_noise": "no fault: it must raise no alarm"}


@pytest.fixture(scope="module")
def servers() -> Iterator[Servers]:
    with Servers() as running:
        yield running


@pytest.fixture(scope="module")
async def baseline(servers: Servers) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(servers.url()) as client:
        yield client


@pytest.fixture(scope="module")
async def small(servers: Servers, baseline: AsyncClient) -> Bench:
    return await make_bench(servers, 1, SMALL, baseline=baseline, concurrencies=(1, 4))


@pytest.fixture(scope="module")
async def whole(servers: Servers, baseline: AsyncClient) -> Bench:
    return await make_bench(servers, 1, Size(), baseline=baseline)


def sooner(name: str) -> Planted:
    planted = replace(MATRIX[name], plant=SOONER.get(name, MATRIX[name].plant))
    return replace(planted, deadline_s=3.0) if name == "hang_mid_stream" else planted


@pytest.mark.parametrize("name", [name for name in MATRIX if name not in SLOW])
async def test_is_caught_by_the_test_meant_for_it(small: Bench, name: str) -> None:
    row = await one(name, sooner(name), small)
    assert any(row["caught"].values()), row["caught"]


@pytest.mark.slow
@pytest.mark.parametrize("name", SLOW)
async def test_is_caught_where_much_is_asked(whole: Bench, name: str) -> None:
    row = await one(name, MATRIX[name], whole)
    assert any(row["caught"].values()), row["caught"]


async def test_a_healed_server_is_healthy_again(small: Bench, servers: Servers) -> None:
    """Else a fault would be caught by what the one before left behind."""
    servers.planted(tree_arguments(), "siblings_visible")
    async with AsyncClient(servers.planted(tree_arguments())) as client:
        under = subject(client, small.prompts, await client.server_info(), output=SMALL.output)
        assert await caught_by("serial", under, small, Planted((), "")) is None


async def test_a_cache_that_evicts_is_no_fault(small: Bench, servers: Servers) -> None:
    planted = MATRIX["evicted_prefix"]
    async with AsyncClient(servers.planted([*tree_arguments(), *planted.arguments])) as client:
        under = subject(client, small.prompts, await client.server_info(), output=SMALL.output)
        evidence = await CONTRACT["after-eviction"].procedure(under)
        assert evidence.skipped is None
        again = [record for tag, record in evidence.records.items() if tag.endswith("after eviction")]
        assert again
        # Prompts begin alike, so a few tokens of each are found in another one.
        assert all(2 * (record.cached_tokens or 0) < len(record.request.input_ids or ()) for record in again)
        assert await caught_by("after-eviction", under, small, planted) is None


def test_what_acts_at_start_or_is_unknown_is_not_planted_into_a_running_server(servers: Servers) -> None:
    url = servers.planted(tree_arguments())
    with httpx.Client(trust_env=False, timeout=60.0) as client:
        for name, says in (("rounding_noise", "acts while a server starts"), ("no_such_fault", "is unknown")):
            response = client.post(f"{url}/plant", json={"plant": [name]})
            assert response.status_code == 400
            assert says in response.text
        assert client.get(f"{url}/server_info").json()["plant"] == []
        assert client.post(f"{servers.url()}/plant", json={"plant": []}).status_code == 404


def test_every_planted_fault_has_a_test_meant_for_it() -> None:
    assert set(MATRIX) | set(NO_MATRIX) == set(catalogue())
