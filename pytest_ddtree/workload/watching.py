"""Watches a server during a round: what its metrics, its log and its GPUs say that a healthy round does not show."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_ddtree.client.client import AsyncClient
from pytest_ddtree.client.errors import ControlError
from pytest_ddtree.client.prometheus import Sample, total
from pytest_ddtree.client.records import Record
from pytest_ddtree.workload.gpu import read_gpus, visible_indices
from pytest_ddtree.workload.validity import GpuState, invalid_reasons
from pytest_ddtree.workload.xids import XidWatch

LARGEST_LOG = 8 << 20
"""Bytes of log of one round that are read; a server that says more in a minute says the same thing over and over."""


@dataclass(slots=True)
class _Before:
    metrics: Mapping[str, Sequence[Sample]] | None
    log_at: int
    gpus: tuple[GpuState, ...]
    xids: XidWatch | None


STEPS = "sglang:spec_verify_calls_total"
"""SGLang's counter of verify steps."""


class Watch:
    """The signs of one server, read before and after each round; `verdict` is empty for a healthy one.

    Metrics need a server that has them; the log and the GPUs one that runs on this host. What cannot be read says nothing.
    """

    def __init__(
        self,
        client: AsyncClient,
        *,
        log: Path | None = None,
        refresh: Callable[[], None] = lambda: None,
        graphs: bool = False,
        local_gpus: bool = False,
        gpus: Sequence[str] | None = None,
    ) -> None:
        """A watch on the server of `client`.

        `log` is the server's, and `refresh` brings it up to date where another host writes it. `graphs`: decode batches without a
        CUDA graph are a fallback, not what was asked for or all that there is. `local_gpus`: the server runs on this host's GPUs, on those
        of `gpus` (indices or UUIDs; None: what CUDA_VISIBLE_DEVICES says): a neighbour's heat is no concern of its cells.
        """
        self._client = client
        self._log = log
        self._refresh = refresh
        self._graphs = graphs
        self._here = local_gpus
        self._wanted = visible_indices(None if gpus is None else ",".join(gpus))
        self._before: _Before | None = None
        self.counted_steps: int | None = None
        """Verify steps of the last round by the server's own counter; None where it has none."""

    async def begin(self) -> None:
        """The state before a round."""
        if self._before is not None and self._before.xids is not None:
            # A round that was broken off had no verdict.
            self._before.xids.close()
        xids = await asyncio.to_thread(XidWatch, self._wanted) if self._here else None
        self._before = _Before(await self._metrics(), await self._size(), await self._gpus(), xids)

    async def verdict(self, records: Sequence[Record]) -> tuple[str, ...]:
        """Why the round that began last says nothing, in words."""
        before = self._before
        if before is None:
            return ()
        after = await self._metrics()
        self.counted_steps = _grown(before.metrics, after, STEPS)
        return invalid_reasons(
            records=records,
            before=before.metrics,
            after=after,
            log=await self._since(before.log_at),
            on_gpu=self._graphs,
            gpus_before=before.gpus,
            gpus_after=await self._gpus(),
            xids=() if before.xids is None else before.xids.close(),
        )

    async def _metrics(self) -> Mapping[str, Sequence[Sample]] | None:
        try:
            return await self._client.metrics()
        except ControlError:
            return None

    async def _gpus(self) -> tuple[GpuState, ...]:
        # NVML may take tens of milliseconds, which the loop must not sleep through.
        return await asyncio.to_thread(read_gpus, self._wanted) if self._here else ()

    async def _size(self) -> int:
        await asyncio.to_thread(self._refresh)
        return _size(self._log)

    async def _since(self, at: int) -> str:
        # Over ssh it takes as long as a round trip, which the loop must not sleep through.
        await asyncio.to_thread(self._refresh)
        if self._log is None:
            return ""
        try:
            with self._log.open("rb") as file:
                file.seek(at)
                return file.read(LARGEST_LOG).decode(errors="replace")
        except OSError:
            return ""


def running_limit(info: Mapping[str, Any]) -> int | None:
    """Requests that a server runs at once, by its `/server_info`; None where it does not say."""
    states = info.get("internal_states")
    state = states[0] if isinstance(states, list) and states and isinstance(states[0], Mapping) else {}
    ranks = info.get("dp_size")
    each, asked = state.get("effective_max_running_requests_per_dp"), info.get("max_running_requests")
    if isinstance(each, int):
        return each * (ranks if isinstance(ranks, int) and ranks > 0 else 1)
    return asked if isinstance(asked, int) else None


def request_limit(info: Mapping[str, Any]) -> int | None:
    """Tokens of one request, prompt and answer, by a server's `/server_info`; None where it does not say.

    SGLang's `max_req_input_len` is a few tokens less than what both may have together.
    """
    known = [
        value for name in ("max_req_input_len", "context_length") if isinstance(value := info.get(name), int)
    ]
    return min(known, default=None)


def _grown(
    before: Mapping[str, Sequence[Sample]] | None, after: Mapping[str, Sequence[Sample]] | None, name: str
) -> int | None:
    if before is None or after is None:
        return None
    later = total({name: list(after.get(name, ()))}, name)
    earlier = total({name: list(before.get(name, ()))}, name)
    return None if later is None else int(later - (earlier or 0.0))


def _size(path: Path | None) -> int:
    try:
        return 0 if path is None else path.stat().st_size
    except OSError:
        return 0
