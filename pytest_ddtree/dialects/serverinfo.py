"""Reading `/server_info`: the flat resolved arguments and `internal_states`, as every SGLang since 0.5.11 answers them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeGuard

from pytest_ddtree.dialects.effective import UNKNOWN, Value

_PLAIN = {
    "attention_backend": "attention_backend",
    "prefill_attention_backend": "prefill_attention_backend",
    "decode_attention_backend": "decode_attention_backend",
    "speculative_draft_attention_backend": "draft_attention_backend",
    "page_size": "page_size",
    "mem_fraction_static": "mem_fraction",
    "context_length": "context_length",
    "max_total_num_tokens": "max_total_tokens",
    "random_seed": "seed",
    "enable_deterministic_inference": "deterministic",
    "incremental_streaming_output": "incremental_streaming",
    "speculative_accept_threshold_single": "accept_threshold_single",
    "speculative_accept_threshold_acc": "accept_threshold_acc",
    "allow_auto_truncate": "auto_truncate",
}
_NEGATED = {
    "disable_radix_cache": "radix_cache",
    "disable_overlap_schedule": "overlap",
    "disable_cuda_graph": "cuda_graph",
}
WINDOW_FIELDS = ("speculative_draft_window_size", "speculative_dflash_draft_window_size")
"""Names of the draft window, newest first (the second until 0.5.11)."""


def values(info: Mapping[str, Any]) -> dict[str, Value]:
    """The knobs that mean the same in every build. A null says nothing: SGLang leaves unset what it resolves later."""
    found: dict[str, Value] = {}
    for key, name in _PLAIN.items():
        if info.get(key) is not None:
            found[name] = info[key]
    for key, name in _NEGATED.items():
        if isinstance(info.get(key), bool):
            found[name] = not info[key]
    found["max_running_requests"] = max_running_requests(info)
    return {name: value for name, value in found.items() if value is not UNKNOWN}


def max_running_requests(info: Mapping[str, Any]) -> Value:
    """Requests that may run at once, as the argument counts them: by the scheduler's own figure, else the argument itself."""
    own, asked = (
        internal_state(info).get("effective_max_running_requests_per_dp"),
        info.get("max_running_requests"),
    )
    if _is_count(own):
        return as_asked(own, info)
    return asked if _is_count(asked) else UNKNOWN


def as_asked(own: int, info: Mapping[str, Any]) -> int:
    """What one scheduler takes, as the argument counts it: under dp attention each has its share of that, rounded down."""
    asked, parts = info.get("max_running_requests"), info.get("dp_size")
    if info.get("enable_dp_attention") is not True or not _is_count(parts) or parts < 1:
        return own
    return asked if _is_count(asked) and asked // parts == own else own * parts


def _is_count(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)


def window(info: Mapping[str, Any]) -> Value:
    """The draft window: a number, None for full context, unknown where the build has no such field."""
    for key in WINDOW_FIELDS:
        if key in info:
            value = info[key]
            return value if value is None or isinstance(value, int) else UNKNOWN
    return UNKNOWN


def draft_tokens(info: Mapping[str, Any]) -> Value:
    """`speculative_num_draft_tokens`; its meaning is the dialect's."""
    value = info.get("speculative_num_draft_tokens")
    if value is None:
        value = info.get("speculative_dflash_block_size")
    return value if isinstance(value, int) else UNKNOWN


def speculative_algorithm(info: Mapping[str, Any]) -> str | None:
    """The algorithm's name as the build spells it, in capitals; None without speculation."""
    value = info.get("speculative_algorithm")
    return value.upper() if isinstance(value, str) and value else None


def chain(info: Mapping[str, Any]) -> dict[str, Value]:
    """A plain DFlash chain: the block is the verify width. A server without speculation has neither."""
    if speculative_algorithm(info) is None:
        return {"algorithm": "none"} if "speculative_algorithm" in info else {}
    block = draft_tokens(info)
    return {
        "algorithm": str(speculative_algorithm(info)),
        "block_size": block,
        "verify_width": block,
        "window": window(info),
    }


def internal_state(info: Mapping[str, Any]) -> Mapping[str, Any]:
    """The first scheduler's state, empty where there is none."""
    states = info.get("internal_states")
    if isinstance(states, list) and states and isinstance(states[0], Mapping):
        return states[0]
    return {}


def env_variables(info: Mapping[str, Any]) -> dict[str, str]:
    """The SGLANG_* variables that the scheduler says it has (0.5.19 and later, when SGLANG_EXPOSE_OWN_ENV_VARS is set)."""
    found = internal_state(info).get("env_vars")
    if isinstance(found, Mapping):
        return {str(key): str(value) for key, value in found.items()}
    if isinstance(found, list):
        pairs = [str(entry).partition("=") for entry in found]
        return {key: value for key, sign, value in pairs if sign}
    return {}
