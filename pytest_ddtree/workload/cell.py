"""One cell from warm-up to decision: requests, rounds, self-check. It knows records and no server's flags."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, Protocol

from pytest_ddtree.axes import Cache
from pytest_ddtree.client.records import Record, Request
from pytest_ddtree.errors import Infrastructure
from pytest_ddtree.workload.endings import EndingLimits, Endings, endings, together
from pytest_ddtree.workload.load import Generates, Load, closed_loop, stagger_starts, warm_up
from pytest_ddtree.workload.measure import CellMeasurement, bound, measure
from pytest_ddtree.workload.rounds import Decision, SamplingRule, decide
from pytest_ddtree.workload.selfcheck import ClientLimits
from pytest_ddtree.workload.shape import JITTER, TURNOVERS, output_lengths, request_count


class CellNotMeasured(Infrastructure):
    """A cell gave no figure; the text says why."""


class CellInvalid(CellNotMeasured):
    """The server did something in the measured window that a healthy one does not; the text says what."""


class UnnaturalAnswers(CellNotMeasured):
    """Answers went on past their natural end, or loop: a drafter loves that, and the cell says nothing about real text."""


class Watches(Protocol):
    """Looks at a server before and after each round."""

    @property
    def counted_steps(self) -> int | None:
        """Verify steps of the last round by the server's own counter."""
        ...

    async def begin(self) -> None: ...

    async def verdict(self, records: Sequence[Record]) -> tuple[str, ...]: ...


class Measurable(Generates, Protocol):
    """What measuring a cell needs of a client."""

    async def flush_cache(self, timeout_s: float = 30.0) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class CellSpec:
    """What is measured: lengths in tokens, and how the load is shaped.

    `jitter` 0 and `stagger` False give equal lengths that start together, as most other tools measure.
    """

    context: int
    concurrency: int
    output: int
    temperature: float = 0.0
    turnovers: int = TURNOVERS
    jitter: float = JITTER
    stagger: bool = True
    seed: int = 0
    cache: Cache = "flushed"
    """The server's prefix cache before a round: emptied, filled with the round's own prompts, or left as it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CellResult:
    """All rounds of a cell, and why there are no more."""

    spec: CellSpec
    rounds: tuple[CellMeasurement, ...]
    decision: Decision
    warm_up_s: float

    def to_json(self) -> dict[str, Any]:
        """As plain JSON types."""
        return asdict(self) | {"decision": {**asdict(self.decision), "text": str(self.decision)}}


Spent = Callable[[Literal["warm-up", "flush", "load"], float], None]
"""Is told what time went into, in seconds."""


def natural_endings(
    records: Sequence[Record],
    eos: Collection[int],
    *,
    limits: EndingLimits | None = None,
    earlier: Sequence[Endings] = (),
    coming: int = 0,
) -> Endings:
    """How natural the answers of a round are.

    Where the limits are for each round it stands for itself; else all rounds of a cell do together, those that are certain to come
    (`coming` answers) as well.
    Raises UnnaturalAnswers where the answers, with those of `earlier` rounds, are no natural text.
    """
    found = endings(records, eos, limits)
    if limits is not None and limits.each_round:
        refuse_unnatural((found,), limits)
    else:
        refuse_unnatural((*earlier, found), limits, coming=coming)
    return found


def refuse_unnatural(
    rounds: Sequence[Endings], limits: EndingLimits | None = None, *, coming: int = 0
) -> None:
    """Raises UnnaturalAnswers where the answers of these rounds together are no natural text."""
    reason = together(rounds).invalid(limits, coming=coming) if rounds else None
    if reason is not None:
        raise UnnaturalAnswers(reason)


def to_come(spec: CellSpec, certain: int, number: int) -> int:
    """How many answers of a cell are sure to follow those of round `number` (0 for the first), where `certain` rounds are to be there."""
    return max(0, certain - number - 1) * request_count(spec.concurrency, spec.turnovers)


MakeRequests = Callable[[int, Sequence[int]], Sequence[Request]]
"""(number of the first prompt, output length of each) -> that many requests, distinct for distinct numbers."""


async def measure_cell(
    client: Measurable,
    make: MakeRequests,
    spec: CellSpec,
    rule: SamplingRule,
    *,
    kernel_stamps: Callable[[], bool],
    deadline_s: float | None = None,
    round_deadline_s: float | None = None,
    limits: ClientLimits | None = None,
    progress: Callable[[str], None] = lambda text: None,
    on_round: Callable[[int, Load, CellMeasurement], None] = lambda number, load, cell: None,
    before: Sequence[float] = (),
    spent: Spent = lambda activity, seconds: None,
    watch: Watches | None = None,
) -> CellResult:
    """Warm up with distinct requests of the cell's shape, then run rounds until `rule` says stop.

    Every round sends other prompts. `on_round` is called with each round's number, load and figures as soon as it is
    measured; `before` are the tok/s of rounds that were measured earlier (a resumed session), which count.
    `kernel_stamps` says whether the kernel stamps arrivals; a transport knows that from its first connection on.
    `spent` is told what the time went into, in seconds: warm-up, emptying or filling the cache, load. `watch` is asked
    around each round.
    Raises CellInvalid for what `watch` saw, CellNotMeasured when a request fails, when the server does not count tokens
    exactly, or when the client was the limit. A request has `deadline_s`, all of a round together `round_deadline_s`.
    """
    count = request_count(spec.concurrency, spec.turnovers)
    lengths = output_lengths(count, spec.output, seed=spec.seed, jitter=spec.jitter)
    began = time.monotonic()
    warm = await warm_up(
        client, make(0, lengths[: spec.concurrency]), concurrency=spec.concurrency, deadline_s=deadline_s
    )
    first = measure(warm)
    _refuse_failures(first, "warm-up")
    warm_up_s = time.monotonic() - began
    spent("warm-up", warm_up_s)
    service_s = first.latency.mean if first.latency else 0.0
    starts = stagger_starts(spec.concurrency, service_s) if spec.stagger else ()
    rounds: list[CellMeasurement] = []
    decision = decide(before, rule)
    last_s = 0.0
    while not decision.stop:
        number = len(before) + len(rounds)
        requests = make(spec.concurrency + number * count, lengths)
        flush_began = time.monotonic()
        if spec.cache != "untouched":
            await client.flush_cache()
        if spec.cache == "warm":
            await _fill_cache(client, requests, spec, deadline_s)
        if watch is not None:
            await watch.begin()
        round_began = time.monotonic()
        spent("flush", round_began - flush_began)
        load = await closed_loop(
            client,
            requests,
            concurrency=spec.concurrency,
            starts_s=starts,
            deadline_s=deadline_s,
            cell_deadline_s=round_deadline_s,
        )
        spent("load", load.wall_s)
        cell = measure(load)
        _refuse_failures(cell, f"round {number + 1}")
        reason = bound(cell, kernel_stamps=kernel_stamps(), limits=limits)
        if reason is not None:
            raise CellNotMeasured(reason)
        reasons = await watch.verdict(load.records) if watch is not None else ()
        if reasons:
            raise CellInvalid(f"round {number + 1} is invalid: {'; '.join(reasons)}")
        rounds.append(cell)
        on_round(number, load, cell)
        last_s = time.monotonic() - round_began
        elapsed_s = time.monotonic() - began
        rates = [*before, *(one.output_tok_s for one in rounds)]
        decision = decide(rates, rule, elapsed_s=elapsed_s, next_s=last_s)
        progress(f"round {number + 1}: {cell.output_tok_s:.1f} tok/s; {decision}")
    return CellResult(spec=spec, rounds=tuple(rounds), decision=decision, warm_up_s=warm_up_s)


async def _fill_cache(
    client: Measurable, requests: Sequence[Request], spec: CellSpec, deadline_s: float | None
) -> None:
    """Send every prompt once for a single token."""
    single = [replace(one, sampling=replace(one.sampling, max_new_tokens=1)) for one in requests]
    load = await closed_loop(client, single, concurrency=spec.concurrency, deadline_s=deadline_s)
    _refuse_failures(measure(load), "filling the cache")


def _refuse_failures(cell: CellMeasurement, where: str) -> None:
    if cell.ok < cell.requests:
        kinds = ", ".join(f"{count} {outcome}" for outcome, count in cell.failures.items())
        shown = f"; {cell.errors[0]}" if cell.errors else ""
        raise CellNotMeasured(
            f"{where}: {cell.requests - cell.ok} of {cell.requests} requests failed ({kinds}){shown}"
        )
    if not cell.exact_counts:
        raise CellNotMeasured(
            f"{where}: the server does not say how many tokens a chunk holds, so rates would be estimates; "
            "use --api generate, or a server that honours stream_options.continuous_usage_stats"
        )
