"""From records to the figures of one cell. Rates come from token counts; chunk gaps are shown as such."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from typing import Any, Self

from pytest_ddtree.client.records import Record
from pytest_ddtree.workload.load import Load
from pytest_ddtree.workload.selfcheck import ClientLimits, ClientLoad, client_bound


@dataclass(frozen=True, slots=True)
class Distribution:
    """A sample of times in seconds: its size, mean and percentiles (linear interpolation)."""

    n: int
    mean: float
    p50: float
    p90: float
    p99: float
    maximum: float

    @classmethod
    def of(cls, values: Iterable[float]) -> Self | None:
        """The distribution of these values; None without any."""
        ordered = sorted(values)
        if not ordered:
            return None
        return cls(
            len(ordered),
            math.fsum(ordered) / len(ordered),
            percentile(ordered, 0.5),
            percentile(ordered, 0.9),
            percentile(ordered, 0.99),
            ordered[-1],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CellMeasurement:
    """The figures of one load. Times in seconds, rates in tokens per second; None: cannot be said."""

    concurrency: int
    requests: int
    ok: int
    failures: Mapping[str, int]
    """How many requests ended with each outcome but `ok`; `not_sent`: the cell's deadline passed."""
    errors: tuple[str, ...]
    """What the first few failed requests said."""
    wall_s: float
    output_tokens: int
    prompt_tokens: int | None
    output_tok_s: float
    """Output tokens of answers that are `ok`, over the whole load, prefill included: what gates look at."""
    decode_tok_s: float | None
    """Tokens after each request's first chunk, over the time in which at least one request was decoding."""
    prefill_tok_s: float | None
    """Prompt tokens that no cache served, over the sum of times to first token; only at concurrency 1."""
    ttft: Distribution | None
    time_per_token: Distribution | None
    latency: Distribution | None
    chunk_gap: Distribution | None
    accept_length: float | None
    """All output tokens / all verify steps; None unless every answer told its verify steps."""
    verify_steps: int | None
    cached_tokens: int | None
    chunks: int
    coalesced: int
    exact_counts: bool
    mean_time_per_token_s: float | None = None
    """All seconds after first chunks / all tokens after first chunks."""
    notes: tuple[str, ...] = field(default=())
    client: ClientLoad | None = None
    """How busy the client was."""

    def to_json(self) -> dict[str, Any]:
        """As plain JSON types."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        """The inverse of `to_json`."""
        data = dict(value)
        for name in ("ttft", "time_per_token", "latency", "chunk_gap"):
            if data[name] is not None:
                data[name] = Distribution(**data[name])
        if data.get("client") is not None:
            data["client"] = ClientLoad(**data["client"])
        for name in ("errors", "notes"):
            data[name] = tuple(data[name])
        return cls(**data)


def measure(load: Load, *, notes: Sequence[str] = ()) -> CellMeasurement:
    """The figures of a load. Only answers that are `ok` enter a rate or a distribution."""
    good = [record for record in load.records if record.ok]
    failed = [record for record in load.records if not record.ok]
    failures = Counter[str](record.outcome for record in failed)
    if load.not_sent:
        failures["not_sent"] = load.not_sent
    tokens = sum(record.completion_tokens for record in good)
    later_tokens, later_s = _after_first(good)
    decoding_s = covered_s(good)
    steps = _total([record.verify_steps for record in good])
    accept = tokens / steps if steps else None
    cached = _total([record.cached_tokens for record in good])
    prompts = _total([record.prompt_tokens for record in good])
    ttfts = [record.ttft_s for record in good if record.ttft_s is not None]
    prefill = None
    if load.concurrency == 1 and prompts is not None and sum(ttfts) > 0:
        prefill = (prompts - (cached or 0)) / sum(ttfts)
    return CellMeasurement(
        concurrency=load.concurrency,
        requests=len(load.records) + load.not_sent,
        ok=len(good),
        failures=dict(failures),
        errors=tuple(_said(record) for record in failed[:5]),
        wall_s=load.wall_s,
        output_tokens=tokens,
        prompt_tokens=prompts,
        output_tok_s=tokens / load.wall_s if load.wall_s > 0 else 0.0,
        decode_tok_s=later_tokens / decoding_s if decoding_s > 0 else None,
        prefill_tok_s=prefill,
        ttft=Distribution.of(ttfts),
        time_per_token=Distribution.of(
            record.time_per_token_s for record in good if record.time_per_token_s is not None
        ),
        latency=Distribution.of(record.latency_s for record in good),
        chunk_gap=Distribution.of(gap for record in good for gap in chunk_gaps(record)),
        accept_length=accept,
        verify_steps=steps,
        cached_tokens=cached,
        chunks=sum(len(record.chunks) for record in good),
        coalesced=sum(record.coalesced for record in good),
        exact_counts=all(record.exact_counts for record in good),
        mean_time_per_token_s=later_s / later_tokens if later_tokens else None,
        notes=tuple(notes),
        client=load.client,
    )


def bound(cell: CellMeasurement, *, kernel_stamps: bool, limits: ClientLimits | None = None) -> str | None:
    """Why the client was the limit of this cell, which is an error and no figure; None where it was not.

    `kernel_stamps`: the kernel stamped the arrivals, so that a late event loop does not distort them.
    """
    if cell.client is None:
        return None
    return client_bound(
        cell.client,
        latency_p50_s=cell.latency.p50 if cell.latency else None,
        gap_p50_s=cell.chunk_gap.p50 if cell.chunk_gap else None,
        coalesced=cell.coalesced,
        chunks=cell.chunks,
        kernel_stamps=kernel_stamps,
        limits=limits,
    )


def percentile(ordered: Sequence[float], share: float) -> float:
    """The quantile of sorted values at `share` in 0..1, linear between neighbours (Hyndman-Fan type 7)."""
    at = share * (len(ordered) - 1)
    low = math.floor(at)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (at - low)


def chunk_gaps(record: Record) -> list[float]:
    """Seconds between arrivals of neighbouring chunks: the stalls that a reader of the stream sees."""
    times = [chunk.at_ns for chunk in record.chunks]
    return [(later - earlier) / 1e9 for earlier, later in pairwise(times)]


def covered_s(records: Iterable[Record]) -> float:
    """Seconds in which at least one record was between its first and its last chunk."""
    spans = sorted((record.chunks[0].at_ns, record.chunks[-1].at_ns) for record in records if record.chunks)
    covered = 0
    reached = 0
    for first, last in spans:
        if last > reached:
            covered += last - max(first, reached)
            reached = last
    return covered / 1e9


def _said(record: Record) -> str:
    return f"{record.request.tag or 'request'}: {record.outcome}: {record.error}"


def _after_first(records: Iterable[Record]) -> tuple[int, float]:
    """Tokens and seconds after the first chunk, summed over records."""
    tokens = 0
    elapsed = 0
    for record in records:
        if len(record.chunks) > 1:
            tokens += record.chunks[-1].tokens - record.chunks[0].tokens
            elapsed += record.chunks[-1].at_ns - record.chunks[0].at_ns
    return tokens, elapsed / 1e9


def _total(values: Sequence[int | None]) -> int | None:
    """The sum; None when there is nothing or any value is missing."""
    known = [value for value in values if value is not None]
    return sum(known) if known and len(known) == len(values) else None
