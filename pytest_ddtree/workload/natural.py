"""Prompts whose natural answer, on the baseline, is longer than the output that is to be measured."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from pytest_ddtree.client.records import Record, Request, Sampling
from pytest_ddtree.errors import Infrastructure
from pytest_ddtree.workload.asking import sampling_for
from pytest_ddtree.workload.cell import CellSpec
from pytest_ddtree.workload.endings import loops, tokens_after_end
from pytest_ddtree.workload.load import Generates, closed_loop
from pytest_ddtree.workload.prompts import Prompt, PromptMaker
from pytest_ddtree.workload.shape import longest_output


class NoLongAnswers(Infrastructure):
    """Too few prompts have a natural answer that is long enough."""


def is_natural(record: Record, need: int, eos: Collection[int] = ()) -> bool:
    """Whether an answer goes on for `need` tokens without ending or looping."""
    ids = record.output_ids[:need]
    return (
        record.ok and record.completion_tokens >= need and not tokens_after_end(ids, eos) and not loops(ids)
    )


async def natural_for(
    baseline: Generates,
    maker: PromptMaker,
    spec: CellSpec,
    *,
    deadline_s: float | None,
    extra: Mapping[str, Any],
) -> tuple[int, ...]:
    """The numbers of as many prompts as a cell needs whose answers are natural for as long as the longest that it measures.

    Raises NoLongAnswers.
    """
    output = longest_output(spec.output, spec.jitter)
    if spec.temperature:
        # Each round draws another answer; one that would barely do may be too short the next time.
        output += output // 2
    return await natural_numbers(
        baseline,
        lambda number: maker.make(spec.context, number),
        spec.concurrency * (spec.turnovers + 1),
        output=output,
        concurrency=spec.concurrency,
        sampling=sampling_for(spec, output, seed=spec.seed, extra=extra),
        deadline_s=deadline_s,
    )


async def natural_numbers(
    baseline: Generates,
    make: Callable[[int], Prompt],
    count: int,
    *,
    output: int,
    concurrency: int = 8,
    attempts: int = 4,
    sampling: Sampling | None = None,
    deadline_s: float | None = None,
) -> tuple[int, ...]:
    """The numbers of the first `count` prompts make(0), make(1), ... whose answer on the baseline is natural for `output`.

    The choice depends on the baseline alone, so every config gets the same prompts. Raises NoLongAnswers when
    fewer than `count` of `attempts` x `count` candidates have one, or when the baseline fails to answer.
    """
    asked = replace(sampling or Sampling(max_new_tokens=output), max_new_tokens=output, ignore_eos=False)
    chosen: list[int] = []
    tried = 0
    while len(chosen) < count and tried < attempts * count:
        numbers = range(tried, tried + min(count, attempts * count - tried))
        tried = numbers.stop
        batch = [make(number) for number in numbers]
        requests = [Request(sampling=asked, input_ids=prompt.ids, tag=prompt.tag) for prompt in batch]
        load = await closed_loop(baseline, requests, concurrency=concurrency, deadline_s=deadline_s)
        _refuse_failures(load.records)
        chosen += [
            number for number, record in zip(numbers, load.records, strict=True) if is_natural(record, output)
        ]
    if len(chosen) < count:
        raise NoLongAnswers(
            f"only {len(chosen)} of {tried} prompts have a natural answer of {output} tokens on the baseline, "
            f"{count} are needed: ask for a shorter output or for another workload"
        )
    return tuple(chosen[:count])


def _refuse_failures(records: Sequence[Record]) -> None:
    failed = [record for record in records if record.outcome not in ("ok", "empty")]
    if failed:
        first = failed[0]
        raise NoLongAnswers(f"the baseline failed on {first.request.tag}: {first.outcome}: {first.error}")
