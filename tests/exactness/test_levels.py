"""The procedures that get answers judged, on a server whose truth is known."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from starlette.responses import JSONResponse, Response

from pytest_ddtree.client.client import AsyncClient
from pytest_ddtree.client.errors import RefusesLogprobs
from pytest_ddtree.exactness.baseline import measure_floor, record_baseline
from pytest_ddtree.exactness.floor import assumed_floor
from pytest_ddtree.exactness.levels import (
    AnswerFailed,
    BaselineAnswers,
    Prefilled,
    Prompt,
    SelfLevelUnavailable,
    collect,
    first_divergence,
    self_consistency,
    teacher_force,
)
from pytest_ddtree.exactness.parallel import each
from pytest_ddtree.exactness.rule import FLOAT32, judge

from .tableserver import EOS, TableServer, greedy, logprobs


def second_best_at(index: int, only: Sequence[int] | None = None) -> Any:
    """Spoil answers at one index by the second best token."""

    def spoil(ids: Sequence[int], at: int, right: int) -> int | None:
        if at != index or (only is not None and tuple(ids) != tuple(only)):
            return None
        return (right + 1) % 48

    return spoil


async def test_collect_gives_the_greedy_answers_by_tag(prompts: list[Prompt]) -> None:
    with TableServer() as server:
        async with AsyncClient(server.url) as client:
            records = await collect(client, prompts, output=20, concurrency=5)
    assert list(records) == [prompt.tag for prompt in prompts]
    assert all(list(records[p.tag].output_ids) == greedy(p.ids, 20) for p in prompts)


async def test_an_answer_that_is_not_ok_names_prompt_outcome_and_the_servers_words(
    prompts: list[Prompt],
) -> None:
    def fail(body: dict[str, Any]) -> Response | None:
        wrong = body["input_ids"] == list(prompts[3].ids)
        return JSONResponse({"error": {"message": "out of pages"}}, status_code=503) if wrong else None

    with TableServer(fail=fail) as server:
        async with AsyncClient(server.url) as client:
            with pytest.raises(AnswerFailed, match=r"'t3'.*rejected.*503.*out of pages"):
                await collect(client, prompts, output=5, concurrency=2)


async def test_two_prompts_of_one_name_are_refused(prompts: list[Prompt]) -> None:
    async with AsyncClient("http://127.0.0.1:9") as client:
        with pytest.raises(ValueError, match="two prompts are called 't0'"):
            await collect(client, [prompts[0], prompts[0]], output=5, concurrency=2)
        with pytest.raises(ValueError, match="has no tokens"):
            await collect(client, [Prompt("empty", ())], output=5, concurrency=2)


@pytest.mark.parametrize("drop", [False, True])
async def test_full_judges_every_token_with_the_stop_token(prompts: list[Prompt], drop: bool) -> None:
    with TableServer() as base, TableServer(speculative=True, drop_stop_token=drop) as tree:
        async with AsyncClient(base.url) as judge_client, AsyncClient(tree.url) as client:
            baseline = await record_baseline(judge_client, prompts, output=60)
            records = await collect(client, prompts, output=60, concurrency=4)
            judged = await teacher_force(judge_client, prompts, records, concurrency=4, baseline=baseline)
    stopped = [p for p in prompts if greedy(p.ids, 60)[-1] == EOS]
    assert stopped, "no prompt stops by itself: the test says nothing"
    for prompt, answer in zip(prompts, judged, strict=True):
        assert [score.token_id for score in answer.scores] == greedy(prompt.ids, 60)
        assert answer.off == 0
        assert answer.identical is True


async def test_a_missed_stop_is_off(prompts: list[Prompt]) -> None:
    stopping = next(p for p in prompts if greedy(p.ids, 60)[-1] == EOS)
    at = len(greedy(stopping.ids, 60)) - 1
    with TableServer() as base, TableServer(speculative=True, spoil=second_best_at(at)) as tree:
        async with AsyncClient(base.url) as judge_client, AsyncClient(tree.url) as client:
            records = await collect(client, [stopping], output=60, concurrency=1)
            (judged,) = await teacher_force(judge_client, [stopping], records, concurrency=1)
    assert judged.scores[at].gap > 0
    assert judged.scores[at].top[0][0] == EOS


async def test_first_divergence_and_full_agree_up_to_the_divergence(prompts: list[Prompt]) -> None:
    with TableServer() as base, TableServer(speculative=True, spoil=second_best_at(4)) as tree:
        async with AsyncClient(base.url) as judge_client, AsyncClient(tree.url) as client:
            baseline = await record_baseline(judge_client, prompts, output=16, top=48)
            records = await collect(client, prompts, output=16, concurrency=4)
            full = await teacher_force(judge_client, prompts, records, concurrency=4)
    first = first_divergence(prompts, records, baseline)
    for a, b in zip(first, full, strict=True):
        if len(baseline.scores[a.tag]) > 4:
            assert a.tokens == 5
            assert a.identical is False
            assert a.scores[4].gap == pytest.approx(b.scores[4].gap, abs=1e-6)
            assert a.scores[4].gap > 0


async def test_a_token_outside_the_recorded_top_has_at_least_the_gap_of_the_last(
    prompts: list[Prompt],
) -> None:
    least = [int(logprobs([*p.ids]).argmin()) for p in prompts]
    wanted = dict(zip((p.ids for p in prompts), least, strict=True))
    with TableServer() as base:
        tree = TableServer(spoil=lambda ids, at, right: wanted[tuple(ids)] if at == 0 else None)
        with tree:
            async with AsyncClient(base.url) as judge_client, AsyncClient(tree.url) as client:
                baseline = await record_baseline(judge_client, prompts, output=4, top=3)
                records = await collect(client, prompts, output=4, concurrency=4)
    for judged, prompt in zip(first_divergence(prompts, records, baseline), prompts, strict=True):
        ranked = sorted(logprobs(prompt.ids))[::-1]
        assert judged.tokens == 1
        assert judged.scores[0].gap == pytest.approx(ranked[0] - ranked[2], abs=1e-6)


async def test_a_floor_of_a_deterministic_server_is_zero(prompts: list[Prompt]) -> None:
    with TableServer() as base:
        async with AsyncClient(base.url) as client:
            baseline, floor = await measure_floor(client, prompts, output=12, concurrencies=(1, 4, 8))
    assert isinstance(baseline, BaselineAnswers)
    assert floor.conditions == ("full@1", "full@4", "first-divergence@4", "full@8", "first-divergence@8")
    assert (floor.off, floor.largest) == (0, 0.0)
    assert all(len(baseline.scores[p.tag]) == len(baseline.records[p.tag].output_ids) for p in prompts)


@pytest.mark.parametrize("speculative", [False, True])
async def test_self_finds_what_prefill_disagrees_with(prompts: list[Prompt], speculative: bool) -> None:
    bad = prompts[2].ids
    with TableServer(speculative=speculative, spoil=second_best_at(3, only=bad)) as server:
        async with AsyncClient(server.url) as client:
            records = await collect(client, prompts[:4], output=8, concurrency=4)
            judged = await self_consistency(client, prompts[:4], records)
    assert server.flushes == 1
    assert [answer.off for answer in judged] == [0, 0, 1, 0]
    assert judged[2].scores[3].gap > 0
    assert all(answer.tokens == len(records[answer.tag].output_ids) for answer in judged)


async def test_self_without_logprobs_sends_prompt_and_answer_first(prompts: list[Prompt]) -> None:
    with TableServer(speculative=True) as server:
        async with AsyncClient(server.url) as client:
            records = await collect(client, prompts[:1], output=6, concurrency=1)
            server.seen.clear()
            await self_consistency(client, prompts[:1], records)
    lengths = [len(body["input_ids"]) for body in server.seen if not body.get("return_logprob")]
    prompt, answer = len(prompts[0].ids), len(records["t0"].output_ids)
    assert lengths[0] == prompt + answer
    assert sorted(lengths[1:]) == list(range(prompt, prompt + answer))
    assert all(body["sampling_params"]["max_new_tokens"] == 1 for body in server.seen)


async def test_self_asks_of_each_prefix_once(prompts: list[Prompt]) -> None:
    known: Prefilled = {}
    with TableServer(speculative=True, spoil=second_best_at(5, only=prompts[1].ids)) as server:
        async with AsyncClient(server.url) as client:
            records = await collect(client, prompts[:2], output=8, concurrency=1)
            first = await self_consistency(client, prompts[:2], records, known=known)
            server.seen.clear()
            again = await self_consistency(client, prompts[:2], records, known=known)
            assert [body for body in server.seen if not body.get("return_logprob")] == []
            longer = await collect(client, prompts[:1], output=9, concurrency=1)
            server.seen.clear()
            await self_consistency(client, prompts[:1], longer, known=known)
    lengths = [len(body["input_ids"]) for body in server.seen if not body.get("return_logprob")]
    assert lengths == [len(prompts[0].ids) + 9, len(prompts[0].ids) + 8]
    assert first == again
    assert [answer.off for answer in again] == [0, 1]


async def test_self_refuses_a_server_whose_first_token_is_the_trees(prompts: list[Prompt]) -> None:
    with TableServer(speculative=True, prefill_verifies=True) as server:
        async with AsyncClient(server.url) as client:
            records = await collect(client, prompts[:1], output=6, concurrency=1)
            with pytest.raises(SelfLevelUnavailable, match="verify steps"):
                await self_consistency(client, prompts[:1], records)


async def test_a_server_without_logprobs_cannot_be_the_baseline(prompts: list[Prompt]) -> None:
    with TableServer(speculative=True) as server:
        async with AsyncClient(server.url) as client:
            with pytest.raises(RefusesLogprobs):
                await record_baseline(client, prompts, output=4)


async def test_a_planted_wrong_token_is_corrupt_at_every_level(prompts: list[Prompt]) -> None:
    with TableServer() as base, TableServer(speculative=True, spoil=second_best_at(5)) as tree:
        async with AsyncClient(base.url) as judge_client, AsyncClient(tree.url) as client:
            baseline, floor = await measure_floor(judge_client, prompts, output=24, concurrencies=(1, 4))
            records = await collect(client, prompts, output=24, concurrency=4)
            full = await teacher_force(judge_client, prompts, records, concurrency=4, baseline=baseline)
            own = await self_consistency(client, prompts, records)
    first = first_divergence(prompts, records, baseline)
    assert "gap" in judge(full, floor, FLOAT32, config="c", level="full").criteria
    assert "gap" in judge(first, floor, FLOAT32, config="c", level="first-divergence").criteria
    assert judge(own, assumed_floor(float32=True), FLOAT32, config="c", level="self").kind == "corrupt"


async def test_each_keeps_order_limits_concurrency_and_cancels_the_rest() -> None:
    running, most, done = 0, 0, []

    async def work(item: int) -> int:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.001 * (5 - item % 5))
        running -= 1
        done.append(item)
        return item * 2

    assert await each(work, range(20), 3) == [2 * item for item in range(20)]
    assert most == 3
    assert await each(work, [], 3) == []
    with pytest.raises(ValueError, match="at least 1"):
        await each(work, [1], 0)

    async def breaks(item: int) -> int:
        if item == 2:
            raise RuntimeError("two")
        await asyncio.sleep(3600)
        return item

    with pytest.raises(RuntimeError, match="two"):
        await each(breaks, range(20), 3)
