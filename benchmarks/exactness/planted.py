"""The planted faults, the test meant for each, and the config in which it shows."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Planted:
    """A fault, the tests meant for it (the first that catches it ends the search), and where it shows."""

    tests: tuple[str, ...]
    plant: str
    budget: int = 8
    window: int | None = None
    deadline_s: float = 90.0
    own: bool = False
    """Whether it takes its server with it, so that it gets one of its own."""
    arguments: tuple[str, ...] = ()
    """Further arguments of its server."""


def _at(
    name: str,
    *tests: str,
    arg: int | None = None,
    budget: int = 8,
    window: int | None = None,
    deadline_s: float = 90.0,
    own: bool = False,
    arguments: tuple[str, ...] = (),
) -> tuple[str, Planted]:
    text = name if arg is None else f"{name}:{arg}"
    return name, Planted(tests, text, budget, window, deadline_s, own, arguments)


MATRIX: dict[str, Planted] = dict(
    (
        _at("accept_decays", "accept-over-time", arg=250),
        _at("accept_over_reported", "usage-and-finish"),
        _at("batch_kv_mixup", "concurrent-8"),
        _at("batch_row_mixup", "concurrent-8"),
        _at("bonus_dropped", "serial"),
        _at("bonus_repeated", "serial"),
        _at("branches_dead", "relations", budget=32),
        _at("cache_leaks", "idle-and-whole", own=True),
        _at("cached_over_reported", "warm-prefix"),
        _at("cancel_corrupts_neighbour", "shared-prefix-cancelled"),
        _at("chunk_lost", "streamed-text"),
        _at("chunk_repeated", "streamed-text"),
        _at("coin_reused", "sampling"),
        _at("compaction_misordered", "second-turn"),
        _at("compaction_off_by_one", "serial"),
        _at("compaction_skipped", "second-turn"),
        _at("crash_after", "concurrent-8", arg=6, own=True),
        _at("crash_beyond_block", "start", budget=16, own=True),
        _at("draft_accepted_uncorrected", "sampling"),
        _at("eos_ignored", "eos-in-run"),
        _at("error_in_stream", "serial"),
        _at("evicted_prefix", "after-eviction", arguments=("--max-total-tokens", "2400")),
        _at("hang_mid_stream", "serial", arg=4, deadline_s=15.0, own=True),
        _at("logit_bias_ignored", "logit-bias"),
        _at("long_context", "long-output"),
        _at("mask_block_size", "serial", budget=16),
        _at("mask_causal", "serial"),
        _at("mask_stale", "serial"),
        _at("max_tokens_overshoot", "few-tokens"),
        _at("min_p_ignored", "truncation"),
        _at("penalties_ignored", "penalties"),
        _at("position_off_by_one", "serial"),
        _at("positions_by_order", "serial"),
        _at("rare_token", "serial", arg=100),
        _at("schema_ignored", "grammar"),
        _at("siblings_visible", "serial"),
        _at("silent_fallback", "drafts-are-used"),
        _at("stale_generated", "second-turn"),
        _at("stale_prefix", "warm-prefix"),
        _at("stop_leaks", "stop-ids", "stop-strings"),
        _at("stop_string_missed", "stop-strings"),
        _at("top_k_ignored", "truncation"),
        _at("tree_ignores_temperature", "seeds", "sampling"),
        _at("usage_off_by_one", "usage-and-finish"),
        _at("window_ignored", "window", window=32),
        _at("window_off_by_page", "window", window=512),
        _at("wrong_features", "drafts-from-generated"),
        _at("wrong_kv_slot", "concurrent-8", arg=8),
    )
)
"""`slower` belongs to the speed gate; `rounding_noise` is no fault but the healthy half of the sessions in bf16."""
