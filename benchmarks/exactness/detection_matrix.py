"""Which planted fault is caught by which test, on the embedded server; and what a healthy server raises.

    python -m benchmarks.exactness.detection_matrix run --seeds 20 [--only NAME ...] [--results FILE]
    python -m benchmarks.exactness.detection_matrix healthy --sessions 100 [--numerics bf16] [--results FILE]
    python -m benchmarks.exactness.detection_matrix table [--results FILE]

Every result is appended to the file at once, so an interrupted run goes on where it stopped.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import sys
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.exactness.caught import Servers, Size, caught_by, make_bench, one
from benchmarks.exactness.embedded import subject, tree_arguments
from benchmarks.exactness.planted import MATRIX, Planted
from pytest_ddtree.client.client import AsyncClient
from pytest_ddtree.exactness.rule import FLOAT32, Rule

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


HEALTHY = (
    "serial",
    "concurrent-8",
    "second-turn",
    "warm-prefix",
    "eos-in-run",
    "stop-ids",
    "usage-and-finish",
    "streamed-text",
)


async def healthy(sessions: Sequence[int], kinds: Sequence[str], results: Path) -> None:
    """Healthy sessions, odd ones with bf16 arithmetic: each should raise no alarm."""
    done = {row["session"] for row in read(results) if "session" in row}
    for session in sessions:
        kind = "bf16" if session % 2 else "float32"
        if session in done or kind not in kinds:
            continue
        numerics = ["--numerics", "bf16"] if kind == "bf16" else []
        alarms: dict[str, str] = {}
        with Servers() as servers:
            tree_url = servers.url(*numerics, *tree_arguments())
            async with AsyncClient(servers.url(*numerics)) as baseline, AsyncClient(tree_url) as client:
                bench = await make_bench(
                    servers,
                    10_000 + session,
                    Size(),
                    baseline=baseline,
                    rule=Rule() if numerics else FLOAT32,
                    concurrencies=(1, 8, 32) if numerics else (1, 8),
                )
                under = subject(client, bench.prompts, await client.server_info(), seed=session)
                for test in HEALTHY:
                    why = await caught_by(test, under, bench, Planted((), ""))
                    if why is not None:
                        alarms[test] = why
        floor = bench.floor
        row = {"session": session, "numerics": kind, "alarms": alarms}
        row |= {"floor_share": floor.share, "floor_largest": floor.largest}
        append(results, row)
        print(row, flush=True)


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
    """One row more."""
    results.parent.mkdir(parents=True, exist_ok=True)
    with results.open("a") as file:
        file.write(json.dumps(row) + "\n")


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
    sessions = [row for row in rows if "session" in row]
    for numerics in ("float32", "bf16"):
        own = [row for row in sessions if row["numerics"] == numerics]
        if own:
            alarms = sum(1 for row in own if row["alarms"])
            lines.append(f"\n{numerics}: {alarms} alarms in {len(own)} healthy sessions")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("run", "healthy", "table"))
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--sessions", type=int, default=100)
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--numerics", nargs="*", default=["float32", "bf16"])
    parser.add_argument("--results", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    # A terminated run takes its servers with it.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    if arguments.what == "run":
        asyncio.run(run(range(1, arguments.seeds + 1), arguments.only, arguments.results))
    elif arguments.what == "healthy":
        asyncio.run(healthy(range(1, arguments.sessions + 1), arguments.numerics, arguments.results))
    else:
        print(table(arguments.results))


if __name__ == "__main__":
    main()
