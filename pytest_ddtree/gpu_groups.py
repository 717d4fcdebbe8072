"""GPU groups: several pools at once on one host, one a worker of pytest-xdist, each with its own GPUs, baseline and logs."""

from __future__ import annotations

import re

Group = tuple[str, ...]
_GPU = re.compile(r"[0-9]{1,4}|(GPU|MIG)-[A-Za-z0-9/-]+")


def parse(text: str) -> tuple[Group, ...]:
    """`0,1/2,3` as two groups of two GPUs (indices or UUIDs). Raises ValueError for an empty group or a GPU in two of them."""
    groups = tuple(tuple(gpu.strip() for gpu in part.split(",")) for part in text.split("/"))
    if any(not gpu for group in groups for gpu in group):
        raise ValueError("has an empty group or GPU; it takes groups such as 0,1/2,3")
    seen: set[str] = set()
    for gpu in (gpu for group in groups for gpu in group):
        if not _GPU.fullmatch(gpu):
            raise ValueError(f"names {gpu!r}, which is neither an index nor a UUID such as GPU-8f2e...")
        if gpu in seen:
            raise ValueError(f"names GPU {gpu} twice")
        seen.add(gpu)
    return groups
