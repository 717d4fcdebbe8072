"""What a draft checkpoint's own config.json says, and where a config departs from what the drafter was trained for."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_ddtree.dialects.effective import show
from pytest_ddtree.grid import Config


@dataclass(frozen=True, slots=True)
class Draft:
    """A drafter as its config.json describes it; None where it does not say."""

    block_size: int | None = None
    window: int | None = None
    """Sliding window of its layers in tokens; None: full context, as far as the file says."""
    layers: int | None = None
    target_layers: tuple[int, ...] = ()
    """Which of the target's layers it reads, from 0."""
    target_depth: int | None = None
    """How many layers the target must have."""
    layer_types: tuple[str, ...] = ()


def read(model: str | Path | None) -> Draft | None:
    """The drafter in a local folder; None when there is no config.json at hand (a hub id, another host)."""
    if model is None:
        return None
    try:
        data = json.loads((Path(model) / "config.json").read_text())
    except (OSError, ValueError):
        return None
    return parse(data) if isinstance(data, dict) else None


def depth(model: str | Path | None) -> int | None:
    """How many layers the target in a local folder has; None where it is not at hand."""
    found = read(model)
    return found.layers if found is not None else None


def parse(data: dict[str, Any]) -> Draft:
    """A drafter from its parsed config.json."""
    own = data.get("dflash_config")
    own = own if isinstance(own, dict) else {}
    kinds = data.get("layer_types")
    layer_types = tuple(str(kind) for kind in kinds) if isinstance(kinds, list) else ()
    window = _count(data.get("sliding_window"))
    # Hugging Face configs carry a window even where no layer slides.
    if data.get("use_sliding_window") is False or (layer_types and "sliding_attention" not in layer_types):
        window = None
    ids = own.get("target_layer_ids", data.get("target_layer_ids"))
    return Draft(
        block_size=_count(data.get("block_size")) or _count(own.get("block_size")),
        window=window,
        layers=_count(data.get("num_hidden_layers")),
        target_layers=tuple(ids) if isinstance(ids, list) and all(isinstance(i, int) for i in ids) else (),
        target_depth=_count(data.get("num_target_layers")),
        layer_types=layer_types,
    )


def unfit(draft: Draft | None, target_depth: int | None) -> str | None:
    """Why no server can run the drafter with a target of so many layers; None where one may, or nothing is known of either."""
    if draft is None or target_depth is None:
        return None
    beyond = [layer for layer in draft.target_layers if not 0 <= layer < target_depth]
    if not beyond:
        return None
    return (
        f"the drafter reads layers {', '.join(map(str, draft.target_layers))} of the target (target_layer_ids, from 0), "
        f"which has {target_depth}"
    )


def warnings(config: Config, draft: Draft | None, *, target_depth: int | None = None) -> tuple[str, ...]:
    """Where the config departs from what the drafter was trained for: no fault, but the accept length suffers."""
    if draft is None or not config.speculative:
        return ()
    found = []
    if draft.window is not None and config.window != draft.window:
        found.append(f"draft window {show(config.window)}, but the drafter was trained with {draft.window}")
    if (
        config.block_size is not None
        and draft.block_size is not None
        and config.block_size != draft.block_size
    ):
        found.append(f"block size {config.block_size}, but the drafter was trained with {draft.block_size}")
    if draft.target_depth is not None and target_depth is not None and draft.target_depth != target_depth:
        found.append(
            f"the drafter was trained for a target of {draft.target_depth} layers, this one has {target_depth}"
        )
    return tuple(found)


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None
