"""GPU groups: several pools at once on one host, one a worker, each with its own GPUs, baseline and logs."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from pytest_ddtree.servers.settings import ServerSettings

Group = tuple[str, ...]


def parse(text: str) -> tuple[Group, ...]:
    """`0,1/2,3` as two groups of two GPUs (indices or UUIDs). Raises ValueError for an empty group or a GPU in two of them."""
    groups = tuple(tuple(gpu.strip() for gpu in part.split(",")) for part in text.split("/"))
    if any(not gpu for group in groups for gpu in group):
        raise ValueError("has an empty group or GPU; it takes groups such as 0,1/2,3")
    seen: set[str] = set()
    for gpu in (gpu for group in groups for gpu in group):
        if gpu in seen:
            raise ValueError(f"names GPU {gpu} twice")
        seen.add(gpu)
    return groups


def number(worker: str) -> int:
    """The number of an xdist worker, `gw3` -> 3. Raises ValueError."""
    match = re.fullmatch(r"gw(\d+)", worker)
    if match is None:
        raise ValueError(f"{worker!r} is no worker of xdist")
    return int(match[1])


def settings_of(settings: ServerSettings, groups: Sequence[Group], worker: str) -> ServerSettings:
    """The settings of one worker: its group's GPUs and a folder of its own for logs.

    Raises ValueError when there are fewer groups than workers: two would measure on the same GPUs.
    """
    index = number(worker)
    if index >= len(groups):
        raise ValueError(
            f"worker {worker} has no GPU group: there are {len(groups)}; run with -n {len(groups)}"
        )
    return replace(settings, gpus=groups[index], run_dir=settings.run_dir / worker)
