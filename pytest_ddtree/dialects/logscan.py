"""What a server's log says about the config in force. Only lines that the build prints itself; nothing is inferred."""

from __future__ import annotations

import re
from collections.abc import Callable

from pytest_ddtree.dialects.effective import Value

_DRAFT_RUNNER = re.compile(r"Initialized DFLASH draft runner\.(?P<rest>[^\n]*)")
_TREE_WORKER = re.compile(r"Initialized DDTREE? ?\w* worker\.(?P<rest>[^\n]*)", re.IGNORECASE)
_CAPACITY = re.compile(r"max_total_num_tokens=(?P<tokens>\d+)(?P<rest>[^\n]*)")
_OVERLAP_OFF = re.compile(
    r"Overlap schedule[r]? is disabled|disable_overlap_schedule is set to True", re.IGNORECASE
)
_DECODE_GRAPH = re.compile(r"Decode batch[^\n]*cuda graph: (?P<state>True|False)")
_PAIR = re.compile(r"(?P<key>[a-z_]+)=(?P<value>[^\s,;)\]]+)")

_WARNINGS: tuple[re.Pattern[str], ...] = (
    re.compile(r"DFLASH block size mismatch:[^\n]*"),
    # Anchored at the line's start or its last bracket, so that a line of 14 kB without the words is passed over once.
    re.compile(r"(?:^|(?<=\]))[^\n\]]*[Ff]alling back[^\n]*", re.MULTILINE),
    re.compile(r"--speculative-draft-window-size has no effect[^\n]*"),
    re.compile(r"Max running requests is reset to[^\n]*"),
)


def scan(text: str) -> tuple[dict[str, Value], tuple[str, ...]]:
    """Knobs that the log states, and the build's own warnings about them, each once.

    Keys that begin with `raw_` are the build's words; a dialect says what they mean.
    """
    found: dict[str, Value] = {}
    if match := _last(_DRAFT_RUNNER, text):
        pairs = _pairs(match["rest"])
        _take(found, pairs, "block_size", "block_size", int)
        _take(found, pairs, "draft_window_size", "window", _number_or_none)
        _take(found, pairs, "compact_cache", "compact_cache", _boolean)
        _take(found, pairs, "attention_backend", "draft_attention_backend", str)
    if match := _last(_TREE_WORKER, text):
        pairs = _pairs(match["rest"])
        _take(found, pairs, "block_size", "block_size", int)
        _take(found, pairs, "tree_budget", "budget", int)
        _take(found, pairs, "max_tree_nodes", "raw_max_tree_nodes", int)
        _take(found, pairs, "topk", "topk", int)
    if match := _last(_CAPACITY, text):
        found["max_total_tokens"] = int(match["tokens"])
        pairs = _pairs(match["rest"])
        _take(found, pairs, "max_running_requests", "max_running_requests", int)
        _take(found, pairs, "context_len", "context_length", int)
    if _OVERLAP_OFF.search(text):
        found["overlap"] = False
    if match := _last(_DECODE_GRAPH, text):
        found["cuda_graph"] = match["state"] == "True"
    warnings = dict.fromkeys(
        match.group().strip() for pattern in _WARNINGS for match in pattern.finditer(text)
    )
    return found, tuple(warnings)


def _last(pattern: re.Pattern[str], text: str) -> re.Match[str] | None:
    return next(iter([*pattern.finditer(text)][-1:]), None)


def _pairs(text: str) -> dict[str, str]:
    return {match["key"]: match["value"].rstrip(".") for match in _PAIR.finditer(text)}


def _take(
    found: dict[str, Value], pairs: dict[str, str], key: str, name: str, convert: Callable[[str], Value]
) -> None:
    if key not in pairs:
        return
    try:
        found[name] = convert(pairs[key])
    except ValueError:
        return


def _number_or_none(text: str) -> Value:
    return None if text == "None" else int(text)


def _boolean(text: str) -> Value:
    if text not in {"True", "False"}:
        raise ValueError(text)
    return text == "True"
