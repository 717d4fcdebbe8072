"""Sampled answers of a server, and the probe whether its logprobs are raw or scaled by the temperature."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from pytest_ddtree.client.client import AsyncClient
from pytest_ddtree.client.records import Record, Request, Sampling
from pytest_ddtree.exactness.levels import teacher_force
from pytest_ddtree.exactness.parallel import each
from pytest_ddtree.exactness.prompts import AnswerFailed, Prompt, prompts_by_tag
from pytest_ddtree.exactness.sampling import (
    Outside,
    Samples,
    make_samples,
    outside_top_k,
)

LogprobScale = Literal["raw", "scaled", "unclear"]


async def sample(
    client: AsyncClient,
    prompts: Sequence[Prompt],
    *,
    output: int,
    concurrency: int,
    temperature: float = 1.0,
    top_k: int = -1,
    seed: int = 0,
) -> dict[str, Record]:
    """One sampled answer to each prompt: tag -> record. Every request has a seed of its own.

    Nothing but `top_k` truncates: what a model's generation config would add is switched off explicitly. EOS
    is ignored so that every answer has `output` tokens. Raises AnswerFailed for an answer that is not `ok`.
    """
    prompts_by_tag(list(prompts))

    async def answer(numbered: tuple[int, Prompt]) -> Record:
        number, prompt = numbered
        sampling = Sampling(
            max_new_tokens=output,
            temperature=temperature,
            top_p=1.0,
            top_k=top_k,
            min_p=0.0,
            seed=seed + number,
            ignore_eos=True,
        )
        record = await client.generate(Request(sampling=sampling, input_ids=prompt.ids, tag=prompt.tag))
        if not record.ok:
            raise AnswerFailed(record, "a sampled answer")
        return record

    records = await each(answer, list(enumerate(prompts)), concurrency)
    return {prompt.tag: record for prompt, record in zip(prompts, records, strict=True)}


async def probe_logprobs(client: AsyncClient, prompt: Prompt, *, tolerance: float = 0.02) -> LogprobScale:
    """Whether the logprobs of a sampled token are the model's or those after division by the temperature.

    One token at temperature 1 and one at 2: the best token's lead over the second is the same in raw logprobs
    and half as large in scaled ones. `unclear` when it is neither within `tolerance` of the lead.
    """
    leads = []
    for temperature in (1.0, 2.0):
        sampling = Sampling(
            max_new_tokens=1, temperature=temperature, top_p=1.0, top_k=-1, seed=1, ignore_eos=True
        )
        request = Request(sampling=sampling, input_ids=prompt.ids, tag=prompt.tag)
        record, scores = await client.baseline_with_logprobs(request, top=2)
        if not scores:
            raise AnswerFailed(record, "a sampled token with logprobs")
        leads.append(scores[0].top[0][1] - scores[0].top[1][1])
    at_one, at_two = leads
    if abs(at_two - at_one) <= tolerance * at_one:
        return "raw"
    return "scaled" if abs(at_two - at_one / 2.0) <= tolerance * at_one else "unclear"


Records = Mapping[str, Record]
NULL_SEEDS = 1_000_003
"""How far the baseline's own seeds are from the run's: the same seeds would give the same tokens."""


async def draw(
    client: AsyncClient, prompts: Sequence[Prompt], *, output: int, concurrency: int, seed: int = 0
) -> dict[str, Record]:
    """Answers sampled at temperature 1: tag -> record. Raises what `sample` raises.

    Half of the prompts are asked one at a time, where verify steps can be read from the chunks, half side by
    side, where a coin may be shared.
    """
    half = len(prompts) // 2
    alone = await sample(client, prompts[:half], output=output, concurrency=1, seed=seed)
    beside = await sample(client, prompts[half:], output=output, concurrency=concurrency, seed=seed + half)
    return alone | beside


async def samples_of(
    baseline: AsyncClient,
    prompts: Sequence[Prompt],
    records: Records,
    *,
    concurrency: int = 8,
    top: int = 20,
    seed: int = 0,
    steps: bool = True,
) -> Samples:
    """Drawn answers judged by `baseline`.

    With `steps` places in verify steps are read from the chunks where these are proved to be steps. Raises
    what `teacher_force` raises.
    """
    judged = await teacher_force(baseline, prompts, records, top=top, concurrency=concurrency)
    return make_samples(judged, records if steps else None, seed=seed)


async def judged_samples(
    client: AsyncClient,
    baseline: AsyncClient,
    prompts: Sequence[Prompt],
    *,
    output: int = 64,
    concurrency: int = 8,
    top: int = 20,
    seed: int = 0,
    steps: bool = True,
) -> Samples:
    """One answer to each prompt drawn from `client`, judged by `baseline`, both being up.

    Raises what `draw` and `samples_of` raise.
    """
    records = await draw(client, prompts, output=output, concurrency=concurrency, seed=seed)
    return await samples_of(
        baseline, prompts, records, concurrency=concurrency, top=top, seed=seed, steps=steps
    )


async def judge_top_k(
    baseline: AsyncClient,
    prompts: Sequence[Prompt],
    records: Records,
    *,
    top_k: int,
    tolerance: float,
    concurrency: int = 8,
) -> tuple[Outside, ...]:
    """Tokens of these answers that the request's `top_k` should have made impossible, at any temperature.

    `tolerance` is the gap limit of the noise floor. Raises what `teacher_force` raises.
    """
    judged = await teacher_force(baseline, prompts, records, top=top_k, concurrency=concurrency)
    return outside_top_k(judged, top_k, tolerance=tolerance)
