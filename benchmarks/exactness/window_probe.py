"""How often the window probe is wrong on the embedded server: alarms of windows that act, and faults that it misses.

    python -m benchmarks.exactness.window_probe [--windows 64,128,256] [--seeds 20] [--numerics bf16] [--plant NAME ...]

Each seed has a text and tasks of its own, as a session with that `--ddtree-seed` has. The server with the full context answers all of
them, then a healthy one with each window, then one with each planted fault. Prints a line a probe and a Markdown table.
"""

from __future__ import annotations

import argparse
import asyncio
from collections import Counter
from collections.abc import Sequence

from benchmarks.exactness.embedded import WEIGHTS, server, tree_arguments
from pytest_ddtree.client.client import AsyncClient
from pytest_ddtree.servers import behaviour
from pytest_ddtree.servers.behaviour import Reading, Tasks
from pytest_ddtree.workload.prompts import PromptMaker

HEALTHY = "healthy"
AS_MANY = 3
"""A far text may be so many windows long where the window is not small: what is longer costs and shows no more."""


def make_tasks(window: int, seed: int, *, exact: bool) -> Tasks:
    """The tasks of one session."""
    longest = (6 if window < 512 else AS_MANY) * window + 200
    text = PromptMaker(WEIGHTS / "target", workload="code", seed=seed).make(4096, 0, purpose="window").ids
    count = behaviour.EXACT_TASKS if exact else behaviour.TASKS
    return behaviour.tasks(text, window, longest=longest, count=count, seed=seed)


async def read_all(url: str, asked: Sequence[Tasks], *, exact: bool) -> list[Reading]:
    async with AsyncClient(url) as client:
        return [await behaviour.read(client, tasks, exact=exact, width=behaviour.WIDTH) for tasks in asked]


async def probe(window: int, seeds: int, numerics: str, faults: Sequence[str]) -> dict[str, Counter[str]]:
    """What the probe says of a window, by fault: how often it acts, hides, or shows nothing."""
    exact = numerics == "f32"
    asked = [make_tasks(window, seed, exact=exact) for seed in range(seeds)]
    common = ("--numerics", numerics)
    with server(*common, *tree_arguments()) as url:
        full = await read_all(url, asked, exact=exact)
    said: dict[str, Counter[str]] = {}
    for fault in (HEALTHY, *faults):
        planted = () if fault == HEALTHY else ("--plant", fault)
        with server(*common, *tree_arguments(window=window), *planted) as url:
            windowed = await read_all(url, asked, exact=exact)
        said[fault] = Counter()
        for seed, (left, right) in enumerate(zip(windowed, full, strict=True)):
            found = behaviour.compare(left, right)
            kind = "hides" if found.hides else "acts" if found.acts else "no effect"
            said[fault][kind] += 1
            print(f"window {window} seed {seed} {fault}: {kind}: {found.text}", flush=True)
    return said


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--windows", default="64,128,256")
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--numerics", choices=("f32", "bf16"), default="f32")
    parser.add_argument("--plant", nargs="*", default=["window_ignored", "window_off_by_page"])
    arguments = parser.parse_args()
    rows = []
    for window in map(int, arguments.windows.split(",")):
        said = asyncio.run(probe(window, arguments.seeds, arguments.numerics, arguments.plant))
        for fault, counts in said.items():
            cells = " | ".join(str(counts[kind]) for kind in ("acts", "no effect", "hides"))
            rows.append(f"| {arguments.numerics} | {window} | {fault} | {cells} |")
    print("\n| arithmetic | window | server | acts | no effect | hides |\n|---|---|---|---|---|---|")
    print("\n".join(rows))


if __name__ == "__main__":
    main()
