"""Whether a cell's figures mean what they say: what the server did meanwhile that a healthy one does not."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from pytest_ddtree.client.prometheus import Sample, total
from pytest_ddtree.client.records import Record

Metrics = Mapping[str, Sequence[Sample]]

_DECODE = re.compile(r"Decode batch")
_QUEUE = re.compile(r"#queue-req:\s*(\d+)")
_RETRACTED = re.compile(r"KV cache pool is full\. Retract requests\.[^\n]*")
_GRAPH_OFF = re.compile(r"cuda graph:\s*False")
_KERNEL_LOG = re.compile(r"NVRM: Xid[^\n]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuState:
    """What NVML says about one GPU."""

    index: int
    """NVML's number of it: not its place among those that are looked at."""
    name: str
    throttle: tuple[str, ...] = ()
    """Reasons for which it runs below its clocks, power cap and idleness excepted."""
    uncorrected_ecc: int | None = None
    slowed_ns: int | None = None
    """For how long heat has slowed it since the driver was loaded; None where the driver does not count."""
    at_ns: int = 0
    """When this was read, on the clock of `time.monotonic_ns`."""


SLOWED = 0.01
"""Share of a round in which heat may slow a GPU: less moves no figure that a round can resolve."""


def invalid_reasons(
    *,
    records: Sequence[Record] = (),
    before: Metrics | None = None,
    after: Metrics | None = None,
    log: str = "",
    on_gpu: bool = False,
    gpus_before: Sequence[GpuState] = (),
    gpus_after: Sequence[GpuState] = (),
    xids: Sequence[str] = (),
) -> tuple[str, ...]:
    """Why the cell must not be published, in words; empty where nothing speaks against it.

    `before` and `after` are the server's metrics around the measured window, `log` what the server logged in it, `xids` what the
    GPU's driver reported. `on_gpu`: a decode batch without a CUDA graph is a fault (an engine that has none logs False all the time).
    """
    return tuple(
        reason
        for reason in (
            _retractions(records, before, after, log),
            _queue(log),
            _graphs(log) if on_gpu else None,
            *_gpus(gpus_before, gpus_after, (*xids, *_KERNEL_LOG.findall(log))),
        )
        if reason is not None
    )


def _retractions(
    records: Sequence[Record], before: Metrics | None, after: Metrics | None, log: str
) -> str | None:
    counted = sum(value for record in records if isinstance(value := record.meta.get("num_retractions"), int))
    if not counted and before is not None and after is not None:
        counted = int(_delta(before, after, "sglang:num_retracted_reqs"))
    if counted <= 0:
        counted = len(_RETRACTED.findall(log))
    if counted <= 0:
        return None
    return f"{counted} retractions: the KV cache was full, and requests were computed twice"


def _queue(log: str) -> str | None:
    """A queue that two decode batches in a row show; a request that arrives at the moment of one log line is no queue."""
    waiting = [
        int(match[1])
        for line in log.splitlines()
        if _DECODE.search(line)
        for match in [_QUEUE.search(line)]
        if match
    ]
    most = max((min(pair) for pair in pairwise(waiting)), default=0)
    if not most:
        return None
    return (
        f"up to {most} requests waited while batches were decoded: the server did not run all of them at once"
    )


def _graphs(log: str) -> str | None:
    lines = [line for line in log.splitlines() if _DECODE.search(line) and _GRAPH_OFF.search(line)]
    return (
        f"{len(lines)} log lines say `cuda graph: False`: the engine fell back to eager decoding, which is much slower. "
        "Let it capture graphs for the largest batch (--cuda-graph-max-bs), or say that it is meant: --disable-cuda-graph in "
        "--ddtree-server-args"
        if lines
        else None
    )


def _gpus(before: Sequence[GpuState], after: Sequence[GpuState], reported: Sequence[str]) -> list[str]:
    reasons = [f"the GPU's driver reported: {'; '.join(reported[:3])}"] if reported else []
    earlier_states = {gpu.index: gpu for gpu in before}
    for gpu in after:
        known, which = earlier_states.get(gpu.index), f"GPU {gpu.index} ({gpu.name})"
        if gpu.throttle:
            reasons.append(f"{which} was throttled: {', '.join(gpu.throttle)}")
        elif known is not None and gpu.slowed_ns is not None and known.slowed_ns is not None:
            slowed, window = gpu.slowed_ns - known.slowed_ns, gpu.at_ns - known.at_ns
            if window > 0 and slowed > SLOWED * window:
                share = slowed / window
                reasons.append(f"{which} was throttled for heat in {share:.0%} of the time")
        earlier = known.uncorrected_ecc if known is not None else None
        if gpu.uncorrected_ecc is not None and earlier is not None and gpu.uncorrected_ecc > earlier:
            reasons.append(f"{which} had {gpu.uncorrected_ecc - earlier} uncorrected ECC errors")
    return reasons


def _delta(before: Metrics, after: Metrics, name: str) -> float:
    earlier = total({key: list(value) for key, value in before.items()}, name)
    later = total({key: list(value) for key, value in after.items()}, name)
    return 0.0 if earlier is None or later is None else later - earlier
