"""What the engine runs with, resolved: the command line's values after defaults and checks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from .tree import possible_nodes

Algorithm = Literal["DFLASH", "DDTREE"]


@dataclass(frozen=True, slots=True)
class SpeculativeSettings:
    """block_size includes the bonus token; budget excludes the root; window in tokens, None = full context."""

    algorithm: Algorithm
    block_size: int
    budget: int
    topk: int
    window: int | None

    @property
    def horizon(self) -> int:
        """Depths that the drafter predicts."""
        return self.block_size - 1

    @property
    def nodes(self) -> int:
        """Draft nodes verified per step, the root excluded."""
        if self.algorithm == "DFLASH":
            return self.horizon
        return possible_nodes(self.budget, self.topk, self.horizon)

    @property
    def width(self) -> int:
        """Rows verified per step."""
        return self.nodes + 1


@dataclass(frozen=True, slots=True)
class EngineSettings:
    context_length: int
    max_total_tokens: int
    page_size: int
    max_running_requests: int
    max_queued_requests: int | None
    chunked_prefill_size: int
    prefix_cache: bool
    random_seed: int
    numerics: str
    speculative: SpeculativeSettings | None
    decode_log_interval: int
    waiting_timeout: float | None = None
    running_timeout: float | None = None
