"""The models and their memory, put together from settings and checkpoints."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from .checkpoint import DraftCheckpoint, TargetCheckpoint
from .drafter import Drafter
from .hooks import Hooks
from .kv_pool import KVPool
from .memory import KVMemory
from .model import Target
from .numerics import make_numerics
from .settings import EngineSettings, SpeculativeSettings
from .warming import Warmer


@dataclass(frozen=True, slots=True)
class DraftSide:
    """The drafter with its own keys and values (same slots as the target's) and its settings."""

    path: Path
    model: Drafter
    pool: KVPool
    settings: SpeculativeSettings
    warm: Warmer

    @property
    def horizon(self) -> int:
        """Depths that the drafter predicts."""
        return self.settings.horizon

    @property
    def width(self) -> int:
        """Rows verified per step."""
        return self.settings.width


@dataclass(frozen=True, slots=True)
class Runtime:
    settings: EngineSettings
    target: Target
    pool: KVPool
    memory: KVMemory
    draft: DraftSide | None
    hooks: Hooks

    @property
    def step_slots(self) -> int:
        """Slots that one decode step of one request writes."""
        return self.draft.width if self.draft is not None else 1

    @property
    def max_request_tokens(self) -> int:
        """Prompt and answer tokens that one request can reach."""
        return min(self.settings.context_length, self.memory.total - self.step_slots)


def build_runtime(
    settings: EngineSettings, target: TargetCheckpoint, draft: DraftCheckpoint | None, hooks: Hooks
) -> Runtime:
    numerics = make_numerics(hooks.numerics(settings.numerics))
    config = target.config.decoder
    slots = settings.max_total_tokens - settings.max_total_tokens % settings.page_size
    speculative = settings.speculative
    # The verify rows of a last step; a planted fault numbers them in order instead of by depth.
    reach = (
        settings.context_length + (max(speculative.block_size, speculative.width) if speculative else 0) + 1
    )
    model = Target(target, numerics, positions=reach)
    side: DraftSide | None = None
    if speculative is not None:
        if draft is None:
            raise ValueError("speculative decoding needs a draft checkpoint")
        small = draft.config.decoder
        drafter = Drafter(draft, model, numerics)
        side = DraftSide(
            path=draft.path,
            model=drafter,
            pool=KVPool(small.num_layers, small.num_kv_heads, small.head_dim, slots),
            settings=speculative,
            warm=Warmer([model.arena, drafter.arena]),
        )
    runtime = Runtime(
        settings=settings,
        target=model,
        pool=KVPool(config.num_layers, config.num_kv_heads, config.head_dim, slots),
        memory=KVMemory(slots, settings.page_size, cache_enabled=settings.prefix_cache),
        draft=side,
        hooks=hooks,
    )
    hooks.started(runtime)
    return runtime
