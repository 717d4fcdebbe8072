"""`pytest-ddtree reap`: remove what earlier runs left behind, for an `if: always()` step after a cancelled CI job."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from pytest_ddtree.servers import stale


def run(argv: Sequence[str]) -> int:
    """Find and remove; returns 0 when nothing of ours is left, 1 when something could not be removed."""
    parser = argparse.ArgumentParser(
        prog="pytest-ddtree reap",
        description="Stops servers that earlier runs of this user left behind. A process is only touched when its environment carries "
        "the marker of a run whose pytest is gone.",
    )
    parser.add_argument(
        "--all", action="store_true", help="also stop the servers of runs whose pytest still lives"
    )
    parser.add_argument("--dry-run", action="store_true", help="only say what would be removed")
    options = parser.parse_args(argv)
    found = stale.find(living_owners=options.all)
    if not found:
        print("nothing of ours is left behind")
        return 0
    for leftover in found:
        print(leftover.describe())
    if options.dry_run:
        return 0
    stuck = stale.remove(found)
    for text in stuck:
        print(f"could not be removed: {text}")
    if not stuck:
        print("removed")
    return 1 if stuck else 0
