"""Baseline answers with their logprobs, and the noise floor that the baseline has against itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pytest_ddtree.client.client import AsyncClient
from pytest_ddtree.client.records import Record, Request, Sampling, TokenScore
from pytest_ddtree.exactness.floor import NoiseFloor, make_floor
from pytest_ddtree.exactness.judged import JudgedAnswer
from pytest_ddtree.exactness.levels import collect, first_divergence, teacher_force
from pytest_ddtree.exactness.parallel import each
from pytest_ddtree.exactness.prompts import AnswerFailed as AnswerFailed
from pytest_ddtree.exactness.prompts import BaselineAnswers as BaselineAnswers
from pytest_ddtree.exactness.prompts import Prompt as Prompt
from pytest_ddtree.exactness.prompts import prompts_by_tag
from pytest_ddtree.exactness.scores import Scores


async def record_baseline(
    client: AsyncClient,
    prompts: Sequence[Prompt],
    *,
    output: int,
    concurrency: int = 1,
    top: int = 20,
    ignore_eos: bool = False,
    on_answer: Callable[[Record, tuple[TokenScore, ...]], None] = lambda record, scores: None,
) -> BaselineAnswers:
    """Greedy answers of the baseline with the `top` most probable tokens at every emitted position.

    `on_answer` hears of each as it comes.

    Raises AnswerFailed for an answer that is not `ok`, RefusesLogprobs where the server gives no logprobs.
    """
    prompts_by_tag(list(prompts))
    sampling = Sampling(max_new_tokens=output, ignore_eos=ignore_eos)

    async def answer(prompt: Prompt) -> tuple[Record, tuple[TokenScore, ...]]:
        record, scores = await client.baseline_with_logprobs(
            Request(sampling=sampling, input_ids=prompt.ids, tag=prompt.tag), top
        )
        if not record.ok:
            raise AnswerFailed(record, "a baseline answer")
        on_answer(record, scores)
        return record, scores

    answers = await each(answer, prompts, concurrency)
    return BaselineAnswers(
        records={prompt.tag: record for prompt, (record, _) in zip(prompts, answers, strict=True)},
        scores={prompt.tag: scores for prompt, (_, scores) in zip(prompts, answers, strict=True)},
    )


async def measure_floor(
    client: AsyncClient,
    prompts: Sequence[Prompt],
    *,
    output: int,
    concurrencies: Sequence[int],
    top: int = 5,
    record_top: int = 20,
    ignore_eos: bool = False,
    known: Scores | None = None,
) -> tuple[BaselineAnswers, NoiseFloor]:
    """The baseline's answers, and its noise against itself at each of these concurrencies.

    The recorded answers (one request at a time) are judged by the baseline's own prefill; at each further
    concurrency the answers are collected anew, judged the same way, and compared with the record up to their
    first divergence, because that is what the two levels do with a speculative server. What it says as a judge
    is kept in `known`. Raises what `record_baseline`, `collect` and `teacher_force` raise.
    """
    known = Scores() if known is None else known
    baseline = await record_baseline(client, prompts, output=output, top=record_top, ignore_eos=ignore_eos)
    judging = max(concurrencies, default=1)
    judged: dict[str, Sequence[JudgedAnswer]] = {
        "full@1": await teacher_force(
            client, prompts, baseline.records, top=top, concurrency=judging, known=known
        )
    }
    for concurrency in sorted({count for count in concurrencies if count > 1}):
        records = await collect(
            client, prompts, output=output, concurrency=concurrency, ignore_eos=ignore_eos
        )
        judged[f"full@{concurrency}"] = await teacher_force(
            client, prompts, records, top=top, concurrency=judging, known=known
        )
        judged[f"first-divergence@{concurrency}"] = first_divergence(prompts, records, baseline)
    return baseline, make_floor(judged)
