"""Sampled answers: true samples pass, every kind of wrong sampler is found, nothing is conditioned on
acceptance."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from pytest_ddtree.client.client import AsyncClient
from pytest_ddtree.client.records import Chunk, Record, Request, Sampling, TokenScore
from pytest_ddtree.exactness.judged import JudgedAnswer
from pytest_ddtree.exactness.levels import teacher_force
from pytest_ddtree.exactness.prompts import Prompt
from pytest_ddtree.exactness.sampled import probe_logprobs, sample
from pytest_ddtree.exactness.sampling import (
    MIN_TOKENS,
    Samples,
    judge_samples,
    make_samples,
    outside_top_k,
    squared_distance,
)

from .tableserver import TableServer

VOCAB = 40
TOP = 8
Draw = Callable[[NDArray[np.float64], float], int]


def by_id(p: NDArray[np.float64], coin: float) -> int:
    """The inverse transform over token ids, as a sampler does it."""
    return int(min(np.searchsorted(np.cumsum(p), coin, side="right"), VOCAB - 1))


def sampled(
    seed: int, *, draw: Draw = by_id, answers: int = 24, length: int = 96, coins: str = "own", step: int = 3
) -> tuple[list[JudgedAnswer], dict[str, Record]]:
    """Answers drawn from random distributions, judged by the true ones, in verify steps of `step` tokens.

    `coins`: `own` for every token, `step` one for all tokens of a step, `batch` one for all answers.
    """
    generator = np.random.default_rng(seed)
    shared = generator.random(length)
    judged, records = [], {}
    for number in range(answers):
        scores = []
        own = generator.random(length)
        for index in range(length):
            logits = generator.normal(0.0, 1.8, VOCAB)
            p = np.exp(logits) / np.exp(logits).sum()
            first_of_step = max(index - 1, 0) // step * step
            coin = {"own": own[index], "step": own[first_of_step], "batch": shared[index]}[coins]
            token = draw(p, float(coin))
            best = np.argsort(-p)[:TOP]
            scores.append(
                TokenScore(
                    position=5 + index,
                    token_id=token,
                    logprob=float(np.log(p[token])),
                    top=tuple((int(b), float(np.log(p[b]))) for b in best),
                )
            )
        tag = f"p{number}"
        judged.append(JudgedAnswer(tag=tag, prompt_tokens=5, scores=tuple(scores)))
        ends = [1, *range(1 + step, length, step), length]
        records[tag] = Record(
            request=Request(sampling=Sampling(max_new_tokens=length), input_ids=(1,) * 5, tag=tag),
            outcome="ok",
            sent_ns=0,
            end_ns=1,
            output_ids=tuple(score.token_id for score in scores),
            chunks=tuple(Chunk(n, end) for n, end in enumerate(ends)),
            meta={"completion_tokens": length, "spec_verify_ct": len(ends) - 1},
        )
    return judged, records


@pytest.fixture(scope="module")
def base() -> Samples:
    return make_samples(sampled(1)[0])


def names(samples: Samples, base: Samples) -> set[str]:
    verdict = judge_samples(samples, base, config="b8")
    part = 0.001 / len(verdict.tests)
    return {test.name for test in verdict.tests if test.p <= part}


@pytest.mark.parametrize("seed", range(2, 6))
def test_true_samples_are_consistent(base: Samples, seed: int) -> None:
    judged, records = sampled(seed)
    verdict = judge_samples(make_samples(judged, records), base, config="b8")
    assert verdict.passed, verdict.reasons
    assert verdict.skipped == ()
    assert len(verdict.tests) == 9


def test_p_values_of_true_samples_are_uniform() -> None:
    """Twenty true runs against twenty baselines: were the p values too small, alarms would be false."""
    smallest = []
    for seed in range(100, 120):
        run = make_samples(sampled(seed, answers=8, length=64)[0])
        verdict = judge_samples(run, make_samples(sampled(seed + 1000, answers=8, length=64)[0]), config="b8")
        smallest += [test.p for test in verdict.tests]
    assert stats.kstest(smallest, "uniform").pvalue > 1e-4
    assert min(smallest) > 1e-5


def test_the_transforms_are_uniform_and_the_excess_has_its_known_variance(base: Samples) -> None:
    for values in (base.by_rank, base.by_id):
        assert stats.kstest(values, "uniform").pvalue > 1e-3
    z = base.excess.sum() / np.sqrt(base.variance.sum())
    assert abs(z) < 4.0
    assert base.excess.var() == pytest.approx(base.variance.mean(), rel=0.1)


def greedy_draw(p: NDArray[np.float64], coin: float) -> int:
    return int(np.argmax(p))


def cooler(p: NDArray[np.float64], coin: float) -> int:
    q = p**1.4
    return by_id(q / q.sum(), coin)


def draft_uncorrected(p: NDArray[np.float64], coin: float) -> int:
    q = np.roll(p, 1) * 0.25 + p * 0.75
    return by_id(q, coin)


@pytest.mark.parametrize(
    ("draw", "found"),
    [
        (greedy_draw, "mean surprise"),
        (cooler, "mean surprise"),
        (draft_uncorrected, "share of tokens outside"),
    ],
)
def test_a_wrong_distribution_is_found(base: Samples, draw: Draw, found: str) -> None:
    judged, records = sampled(50, draw=draw)
    assert any(name.startswith(found) for name in names(make_samples(judged, records), base))


def test_a_coin_reused_within_a_step_is_found(base: Samples) -> None:
    judged, records = sampled(51, coins="step")
    found = names(make_samples(judged, records), base)
    assert "one random number for it and the next token, above its chance" in found
    assert "mean surprise above its expectation, nats" not in found


def test_a_coin_shared_by_the_batch_is_found(base: Samples) -> None:
    judged, records = sampled(52, coins="batch")
    assert "one random number for it and the neighbour's token, above its chance" in names(
        make_samples(judged, records), base
    )


def test_a_fault_at_one_depth_alone_is_found_by_depth(base: Samples) -> None:
    judged, records = sampled(53)
    run = make_samples(judged, records)
    at = run.place == 2
    assert 300 < at.sum() < run.tokens / 2
    worse = replace(run, excess=run.excess + np.where(at, 0.3, -0.15 * at.sum() / (~at).sum()))
    assert "largest mean surprise of a depth, nats from the baseline's" in names(worse, base)


def test_depths_that_are_compared_with_one_mean_are_no_independent_ones() -> None:
    """Adding up each over its own variance rejected 2.3 times as often as it should at 1 in 10,000."""
    errors, common, sessions = np.sqrt(1.0 / np.array([350, 220, 120, 100])), np.sqrt(1.0 / 300), 40_000
    rng = np.random.default_rng(5)
    seen = rng.normal(size=(sessions, 4)) * errors - rng.normal(size=(sessions, 1)) * common
    distances = [squared_distance(list(one), list(errors), common=float(common)) for one in seen]
    assert stats.kstest(distances, stats.chi2(4).cdf).pvalue > 1e-3
    assert np.mean(np.asarray(distances) > stats.chi2.isf(0.001, 4)) == pytest.approx(0.001, abs=0.0006)
    naive = (seen**2 / (errors**2 + common**2)).sum(axis=1)
    assert np.mean(naive > stats.chi2.isf(0.001, 4)) > 0.002


def test_unproved_steps_skip_the_depths_and_say_so(base: Samples) -> None:
    verdict = judge_samples(make_samples(sampled(3)[0]), base, config="b8")
    assert verdict.passed
    assert any("not proved" in reason for reason in verdict.skipped)


def test_few_tokens_are_unknown(base: Samples) -> None:
    few = make_samples(sampled(4, answers=2, length=20)[0])
    verdict = judge_samples(few, base, config="b8")
    assert verdict.kind == "unknown"
    assert not verdict.passed
    assert str(MIN_TOKENS) in verdict.reasons[0]


def test_a_token_outside_top_k_is_named() -> None:
    judged, _ = sampled(5, draw=greedy_draw, answers=2, length=10)
    assert outside_top_k(judged, 4, tolerance=0.01) == ()
    worst, _ = sampled(5, draw=lambda p, coin: int(np.argmin(p)), answers=2, length=10)
    found = outside_top_k(worst, 4, tolerance=0.01)
    assert len(found) == 20
    assert found[0].below >= found[-1].below > 0.01
    with pytest.raises(ValueError, match="top_k 9 cannot be judged"):
        outside_top_k(judged, 9, tolerance=0.01)


async def test_samples_of_a_real_server_are_judged_by_its_own_logprobs(prompts: list[Prompt]) -> None:
    with TableServer() as base, TableServer(speculative=True, step=3) as tree:
        async with AsyncClient(base.url) as judge_client, AsyncClient(tree.url) as client:
            own = await sample(judge_client, prompts, output=48, concurrency=4, seed=100)
            records = await sample(client, prompts, output=48, concurrency=1, seed=500)
            judged = await teacher_force(judge_client, prompts, records, top=12, concurrency=4)
            null = await teacher_force(judge_client, prompts, own, top=12, concurrency=4)
    seen = [body["sampling_params"] for body in tree.seen]
    assert [params["sampling_seed"] for params in seen] == list(range(500, 512))
    assert all((p["temperature"], p["top_p"], p["top_k"], p["min_p"]) == (1.0, 1.0, -1, 0.0) for p in seen)
    run, base_samples = make_samples(judged, records), make_samples(null)
    assert (run.place >= 0).sum() > 400
    assert judge_samples(run, base_samples, config="b8").passed


async def test_a_server_that_ignores_the_temperature_is_found(prompts: list[Prompt]) -> None:
    def cold(body: dict[str, Any]) -> None:
        body["sampling_params"]["temperature"] = 0.0

    with TableServer() as base, TableServer(speculative=True, fail=cold) as tree:
        async with AsyncClient(base.url) as judge_client, AsyncClient(tree.url) as client:
            own = await sample(judge_client, prompts, output=48, concurrency=4, seed=100)
            records = await sample(client, prompts, output=48, concurrency=4, seed=500)
            judged = await teacher_force(judge_client, prompts, records, top=12, concurrency=4)
            null = await teacher_force(judge_client, prompts, own, top=12, concurrency=4)
    verdict = judge_samples(make_samples(judged, records), make_samples(null), config="b8")
    assert verdict.kind == "corrupt"
    assert "mean surprise" in verdict.reasons[0]


@pytest.mark.parametrize("scale", ["raw", "scaled"])
async def test_the_scale_of_logprobs_is_probed(prompts: list[Prompt], scale: str) -> None:
    with TableServer(scaled_logprobs=scale == "scaled") as server:
        async with AsyncClient(server.url) as client:
            assert await probe_logprobs(client, prompts[0]) == scale
