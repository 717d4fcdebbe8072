"""Which planted fault is caught by which test, on the embedded server; and what a healthy server raises.

    python -m benchmarks.exactness.detection_matrix run --seeds 20 [--only NAME ...] [--results FILE]
    python -m benchmarks.exactness.detection_matrix healthy --sessions 100 [--numerics bf16] [--whole] [--results FILE]
    python -m benchmarks.exactness.detection_matrix table [--results FILE]

Every result is appended to the file at once, so an interrupted run goes on where it stopped.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import sys
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.exactness.caught import Servers, Size, make_bench, one
from benchmarks.exactness.healthy import KINDS, groups, run_group, summary
from benchmarks.exactness.planted import MATRIX
from pytest_ddtree.client.client import AsyncClient

RESULTS = Path(".ddtree/detection.jsonl")


async def run(seeds: Sequence[int], only: Sequence[str], results: Path) -> None:
    """Every fault under every seed that the results do not hold yet."""
    done = {(row["fault"], row["seed"]) for row in read(results) if "fault" in row}
    for seed in seeds:
        left = {
            name: planted
            for name, planted in MATRIX.items()
            if (name, seed) not in done and (not only or name in only)
        }
        if not left:
            continue
        # Fresh servers for every seed, so that seeds share nothing.
        with Servers() as servers:
            async with AsyncClient(servers.url()) as baseline:
                bench = await make_bench(servers, seed, Size(), baseline=baseline)
                for name, planted in left.items():
                    row = await one(name, planted, bench)
                    append(results, row)
                    caught = ", ".join(f"{test}: {why or 'MISSED'}" for test, why in row["caught"].items())
                    print(f"{name} seed {seed} {row['seconds']} s: {caught[:230]}", flush=True)


async def healthy(sessions: Sequence[int], kinds: Sequence[str], results: Path, *, whole: bool) -> None:
    """The healthy sessions that the results do not hold yet."""
    done = {row["session"] for row in read(results) if "session" in row}

    def note(row: dict[str, Any]) -> None:
        append(results, row)
        print(row, flush=True)

    for kind, group in groups([session for session in sessions if session not in done], kinds):
        await run_group(kind, group, note, whole=whole)


def read(results: Path) -> list[dict[str, Any]]:
    """All rows of a results file; a line cut by a crash is left out."""
    rows = []
    for line in results.read_text().splitlines() if results.exists() else []:
        try:
            rows.append(json.loads(line))
        except ValueError:
            continue
    return rows


def append(results: Path, row: dict[str, Any]) -> None:
    """One row more, on a line of its own also behind one that a crash cut."""
    results.parent.mkdir(parents=True, exist_ok=True)
    with results.open("ab+") as file:
        if file.tell():
            file.seek(-1, os.SEEK_END)
        cut = file.read(1) not in (b"", b"\n")
        file.write(b"\n" * cut + json.dumps(row).encode() + b"\n")


def table(results: Path) -> str:
    """Markdown: per fault and test how many seeds caught it, with one reason; then the healthy sessions."""
    rows = read(results)
    seen: dict[tuple[str, str], list[str | None]] = defaultdict(list)
    for row in rows:
        for test, why in row.get("caught", {}).items():
            seen[row["fault"], test].append(why)
    lines = ["| fault | test | caught | for example |", "|---|---|---|---|"]
    for (name, test), reasons in sorted(seen.items()):
        caught = [reason for reason in reasons if reason]
        example = (caught[0] if caught else "").replace("|", "\\|").replace("\n", " ")[:110]
        lines.append(f"| {name} | {test} | {len(caught)} of {len(reasons)} | {example} |")
    return "\n".join([*lines, "", *summary([row for row in rows if "session" in row])])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("run", "healthy", "table"))
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--sessions", type=int, default=100)
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--numerics", nargs="*", choices=KINDS, default=list(KINDS))
    parser.add_argument("--whole", action="store_true", help="ask every test in every healthy session")
    parser.add_argument("--results", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    # A terminated run takes its servers with it.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    if arguments.what == "run":
        asyncio.run(run(range(1, arguments.seeds + 1), arguments.only, arguments.results))
    elif arguments.what == "healthy":
        sessions = range(1, arguments.sessions + 1)
        asyncio.run(healthy(sessions, arguments.numerics, arguments.results, whole=arguments.whole))
    else:
        print(table(arguments.results))


if __name__ == "__main__":
    main()
