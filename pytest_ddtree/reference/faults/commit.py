"""Faults of keys and values: compaction, slots, prefixes, neighbours."""

from __future__ import annotations

from collections.abc import Sequence

from ..arrays import F32
from ..request import Request
from ..runtime import Runtime
from .base import Fault


class CompactionSkipped(Fault):
    """Accepted nodes' keys and values stay where the tree put them; the positions behind the root hold others'."""

    name = "compaction_skipped"
    imitates = "public fork notes: accepted KV is not moved (fixed with move_accept_tokens_to_target_kvcache)"

    def compaction(self, moves: list[tuple[int, int]], width: int) -> list[tuple[int, int]]:
        return [] if self.fires() else moves


class CompactionMisordered(Fault):
    """Accepted nodes are moved one by one, the last first, so that a move reads what another one wrote.

    Swapping two slots alone would do no harm: a key carries its position.
    """

    name = "compaction_misordered"
    imitates = "public fork notes: overlapping verify windows overwrite accepted nodes' KV"

    def compaction(self, moves: list[tuple[int, int]], width: int) -> list[tuple[int, int]]:
        if not self.fires():
            return moves
        now: dict[int, int] = {}
        for source, target in reversed(moves):
            now[target] = now.get(source, source)
        return [(source, target) for target, source in now.items()]


class CompactionOffByOne(Fault):
    """Compaction copies the node beside the accepted one."""

    name = "compaction_off_by_one"
    imitates = "public fork notes: slots freed and moved as if a page were one token"

    def compaction(self, moves: list[tuple[int, int]], width: int) -> list[tuple[int, int]]:
        return [(source - 1 if self.fires() else source, target) for source, target in moves]


class WrongSlot(Fault):
    """In one request of N one position's keys and values are another position's."""

    name = "wrong_kv_slot"
    imitates = "SGLang #35150/#36548: a few of 304 answers are wrong, and only some positions of them"
    takes = "N"
    default = 1

    def committed(self, runtime: Runtime, requests: Sequence[Request]) -> None:
        for request in requests:
            at = request.kv_length - 1
            if request.number % max(self.number, 1) or at < 8 or not self.fires():
                continue
            table = request.table().table
            runtime.pool.move(table.slots(at - 5, at - 4), table.slots(at, at + 1))


class BatchRowMixUp(Fault):
    """With two or more requests in a batch the first two get each other's logits."""

    name = "batch_row_mixup"
    imitates = "SGLang #32666, #35150: corruption at concurrency 2 and up only"

    def verify_logits(self, logits: F32, requests: Sequence[Request]) -> F32:
        if len(requests) < 2 or not self.fires():
            return logits
        mixed = logits.copy()
        mixed[[0, 1]] = mixed[[1, 0]]
        return mixed


class BatchContextMixUp(Fault):
    """With two or more requests in a batch a request's newest keys come from its neighbour."""

    name = "batch_kv_mixup"
    imitates = "public notes on DDTree: the mask's index pointer is right for request 0 only"

    def committed(self, runtime: Runtime, requests: Sequence[Request]) -> None:
        if len(requests) < 2 or not self.fires():
            return
        first, second = requests[0], requests[1]
        source = first.table().table.slots(first.kv_length - 1, first.kv_length)
        runtime.pool.move(source, second.table().table.slots(second.kv_length - 1, second.kv_length))


class StalePrefix(Fault):
    """A prefix hit finds keys that were overwritten: its last cached positions hold another part's."""

    name = "stale_prefix"
    imitates = "SGLang #34043, #23392: state reused on a radix hit is not what was cached"
    takes = "least cached tokens"
    default = 16

    def admitted(self, runtime: Runtime, request: Request) -> None:
        cached = request.kv_length
        if cached < max(self.number, 4) or not self.fires():
            return
        table = request.table().table
        half = min(cached // 2, 32)
        runtime.pool.move(table.slots(0, half), table.slots(cached - half, cached))


class EvictedPrefix(Fault):
    """A prompt that was answered before counts as cached although its pages were evicted: what lies there now is used.

    A flush is remembered.
    """

    name = "evicted_prefix"
    imitates = "SGLang #34043, #23392: a radix hit outlives what it points to"

    def __init__(self, argument: str | None = None, rate: float = 1.0) -> None:
        super().__init__(argument, rate)
        self._answered: set[bytes] = set()

    def finished(self, runtime: Runtime, request: Request) -> None:
        self._answered.add(request.prompt.tobytes())

    def admitted(self, runtime: Runtime, request: Request) -> None:
        if not runtime.memory.cache.held:
            self._answered.clear()
        hit = len(request.prompt) - 1
        known = request.prompt.tobytes() in self._answered
        if known and not request.output and request.kv_length < hit and self.fires():
            request.kv_length = hit


class GeneratedPrefix(Fault):
    """Keys of generated tokens are wrong once they are found again by a later turn."""

    name = "stale_generated"
    imitates = (
        "SGLang #8726, #32459: speculation and prefix reuse disagree on what generated tokens left behind"
    )

    def finished(self, runtime: Runtime, request: Request) -> None:
        table = request.table().table
        begin, end = len(request.prompt), request.kv_length
        count = (end - begin) // 2
        if count < 1 or not self.fires():
            return
        runtime.pool.move(table.slots(begin, begin + count), table.slots(end - count, end))


class CancelCorrupts(Fault):
    """Cancelling a request frees slots that its neighbour still uses: the neighbour's newest keys are overwritten."""

    name = "cancel_corrupts_neighbour"
    imitates = "SGLang #23392: cancel and retry with a shared prefix corrupts unrelated requests"

    def aborted(self, runtime: Runtime, request: Request, others: Sequence[Request]) -> None:
        if request.kv_length < 8:
            return
        source = request.table().table
        for other in others:
            count = min(8, request.kv_length, other.kv_length)
            if self.fires():
                runtime.pool.move(
                    source.slots(0, count),
                    other.table().table.slots(other.kv_length - count, other.kv_length),
                )


class LongContext(Fault):
    """Beyond N tokens of context the newest position's keys are those of position N."""

    name = "long_context"
    imitates = "SGLang #34189: a hard-coded pad corrupts the KV silently once a size is exceeded"
    takes = "N"
    default = 512

    def committed(self, runtime: Runtime, requests: Sequence[Request]) -> None:
        for request in requests:
            if request.kv_length > self.number + 1 and self.fires():
                table = request.table().table
                runtime.pool.move(
                    table.slots(self.number, self.number + 1),
                    table.slots(request.kv_length - 1, request.kv_length),
                )
