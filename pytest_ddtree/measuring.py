"""Rounds of one cell for the results: requests of the workload, and what a report needs of each round."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pytest_ddtree.client.client import AsyncClient
from pytest_ddtree.grid import CellKey
from pytest_ddtree.results.model import Round
from pytest_ddtree.workload.asking import request_maker
from pytest_ddtree.workload.cell import (
    CellNotMeasured,
    CellSpec,
    Spent,
    UnnaturalAnswers,
    Watches,
    measure_cell,
    natural_endings,
    refuse_unnatural,
    to_come,
)
from pytest_ddtree.workload.endings import EndingLimits, Endings
from pytest_ddtree.workload.load import Load
from pytest_ddtree.workload.measure import CellMeasurement
from pytest_ddtree.workload.prompts import PromptMaker
from pytest_ddtree.workload.rounds import SamplingRule
from pytest_ddtree.workload.selfcheck import ClientLimits
from pytest_ddtree.workload.steps import wrong_steps

NO_STEPS = "the server reports no verify steps (spec_verify_ct): it answers without speculation"
"""What a speculative config without an accept length is."""


class AcceptLengthWrong(AssertionError):
    """The server reports verify steps that cannot be true: a verdict on the server, so the test fails."""


async def measure_rounds(
    client: AsyncClient,
    maker: PromptMaker,
    key: CellKey,
    spec: CellSpec,
    rule: SamplingRule,
    *,
    config: str,
    eos: frozenset[int],
    indices: Sequence[int] | None = None,
    before: Sequence[Round] = (),
    stamp: Callable[[Round], Round] = lambda one: one,
    keep: Callable[[Round], None] = lambda one: None,
    client_lag: float = 0.01,
    deadline_s: float | None = None,
    extra: Mapping[str, Any] | None = None,
    spent: Spent = lambda activity, seconds: None,
    watch: Watches | None = None,
    natural_limits: EndingLimits | None = None,
    certain: int = 0,
) -> tuple[Round, ...]:
    """Rounds of one cell until `rule` says stop; `keep` is called with each, as `stamp` completed it, as soon as it is measured.

    `certain` rounds are to be there in the end, where those are more than `rule` asks for: the others come in later calls.

    Raises:
        CellInvalid: the server did what a healthy one does not (`watch`).
        CellNotMeasured: requests failed, tokens are not counted, the client was the limit.
        UnnaturalAnswers: the answers are no natural text; `natural_limits` are others than the usual ones.
    """
    rounds = list(before)
    together = natural_limits is None or not natural_limits.each_round
    seen = _endings(before) if together else []
    certain = max(certain, rule.min_rounds)

    def on_round(number: int, load: Load, cell: CellMeasurement) -> None:
        wrong = wrong_steps(load.records)
        if wrong is not None:
            raise AcceptLengthWrong(f"{config} {key.id}, {wrong}")
        coming = to_come(spec, certain, number)
        natural = natural_endings(load.records, eos, limits=natural_limits, earlier=seen, coming=coming)
        seen.append(natural)
        counted = None if watch is None else watch.counted_steps
        one = stamp(_round(config, key, number, load, cell, spec, natural, counted))
        rounds.append(one)
        keep(one)

    try:
        await measure_cell(
            client,
            request_maker(maker, spec, indices=indices, extra=extra),
            spec,
            rule,
            kernel_stamps=lambda: client.transport.reader == "kernel",
            limits=ClientLimits(lag_of_latency=client_lag),
            on_round=on_round,
            before=[one.tok_s for one in before],
            deadline_s=deadline_s,
            spent=spent,
            watch=watch,
        )
        if together:
            # Rounds that were to come did not where the time was over.
            later = to_come(spec, certain, len(rounds) - 1) if certain > rule.min_rounds else 0
            refuse_unnatural(seen, natural_limits, coming=later)
    except CellNotMeasured as error:
        raise type(error)(f"{config} {key.id}: {error}") from None
    return tuple(rounds)


def refuse_unnatural_rounds(rounds: Sequence[Round], limits: EndingLimits | None = None) -> None:
    """Raises UnnaturalAnswers where the answers of rounds that were measured before are no natural text."""
    try:
        refuse_unnatural(_endings(rounds), limits)
    except UnnaturalAnswers as error:
        raise UnnaturalAnswers(f"{rounds[0].config} {rounds[0].key.id}: {error}") from None


def _endings(rounds: Sequence[Round]) -> list[Endings]:
    """How natural the answers of stored rounds were, of those that say it."""
    return [
        Endings(
            answers=one.requests,
            tokens=one.tokens,
            tokens_after_end=one.tokens_after_end,
            most_after_end=one.most_after_end,
            looping=one.looping,
            distinct_mean=1.0 if one.distinct_4grams is None else one.distinct_4grams,
            distinct_least=1.0 if one.distinct_4grams is None else one.distinct_4grams,
        )
        for one in rounds
        if one.looping is not None and one.most_after_end is not None
    ]


def _round(
    config: str,
    key: CellKey,
    number: int,
    load: Load,
    cell: CellMeasurement,
    spec: CellSpec,
    natural: Endings,
    counted_steps: int | None,
) -> Round:
    gap, client = cell.chunk_gap, cell.client
    records = load.records
    return Round(
        config=config,
        key=key,
        number=number,
        requests=len(records),
        tokens=cell.output_tokens,
        wall_s=cell.wall_s,
        ttft_s=tuple(record.ttft_s for record in records if record.ttft_s is not None),
        time_per_token_s=tuple(
            record.time_per_token_s for record in records if record.time_per_token_s is not None
        ),
        latency_s=tuple(record.latency_s for record in records),
        verify_steps=cell.verify_steps,
        cached_tokens=cell.cached_tokens,
        decode_tok_s=cell.decode_tok_s,
        tokens_after_end=natural.tokens_after_end,
        most_after_end=natural.most_after_end if natural.answers else None,
        looping=natural.looping if natural.answers else None,
        distinct_4grams=natural.distinct_mean if natural.answers else None,
        cache=spec.cache,
        chunk_gap_s=() if gap is None else (gap.p50, gap.p90, gap.p99, gap.maximum),
        prefill_tok_s=cell.prefill_tok_s,
        counted_steps=counted_steps,
        client_cpu=None if client is None else client.cpu_share,
        client_lag_s=None if client is None else client.lag_mean_s,
        coalesced=cell.coalesced,
        at=time.time(),
    )
