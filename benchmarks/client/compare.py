"""Readers of token streams against a server that knows the truth: a table for every cell, and one of the goals.

    python benchmarks/client/compare.py                       # the readers that this environment can run
    python benchmarks/client/compare.py --peers PATH/python   # and those of an interpreter with aiohttp and sglang
    python benchmarks/client/compare.py --quick

Server and client are pinned to one core each where there are two. Errors are against the server's own log.
"""

from __future__ import annotations

import argparse
import math
import os
import platform
import statistics
import sys
import tempfile
import time
from pathlib import Path

import goals
from running import (
    AIOHTTP,
    HTTPX,
    KERNEL,
    READERS,
    RUST,
    UVLOOP,
    Cell,
    Figures,
    Reader,
    build,
    run,
    start_cpu_s,
)

FORMATS = {
    "cpu_us": ("CPU us/chunk", ".1f"),
    "delay_p50_us": ("delay p50 us", ".0f"),
    "delay_p99_us": ("delay p99 us", ".0f"),
    "ttft_mean_ms": ("TTFT error ms", "+.2f"),
    "rate_error_pct": ("tok/s error %", "+.2f"),
    "token_time_error_pct": ("time/token error %", "+.3f"),
    "chunks_per_s": ("chunks/s", ".0f"),
}
PEERS = (HTTPX, AIOHTTP, RUST)


def main() -> None:
    cli = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    cli.add_argument("--peers", metavar="PYTHON", help="interpreter with aiohttp (and sglang) installed")
    cli.add_argument("--streams", default="8,64,128,256")
    cli.add_argument(
        "--repeats", type=int, default=1, help="runs of each reader, interleaved; medians are shown"
    )
    cli.add_argument("--quick", action="store_true", help="only 64 and 128 streams")
    options = cli.parse_args()
    counts = [64, 128] if options.quick else [int(part) for part in options.streams.split(",")]
    cells = [Cell(count, 1) for count in counts]
    cells += [Cell(128, 4), Cell(128, 0), Cell(64, 1, chunks=500, tick_us=0)]
    began = time.monotonic()
    print(conditions())
    measured: list[goals.Measured] = []
    with tempfile.TemporaryDirectory() as folder:
        binary = build(Path(folder))
        for cell in cells:
            print(f"\n### {cell}\n", flush=True)
            found = medians(binary, cell, options)
            measured.append(goals.Measured(str(cell), cell.streams, cell.per_chunk, cell.tick_us > 0, found))
            print("\n".join(shown(found)), flush=True)
        starts = start_medians(binary, options)
    print(f"\n### Goals, medians of {options.repeats} runs\n")
    print(goals.table(goals.goals(KERNEL, UVLOOP), measured, PEERS, starts))
    print(f"\n{(time.monotonic() - began) / 60:.1f} minutes, load average after {load()}")


def readers_of(options: argparse.Namespace) -> list[tuple[Reader, str]]:
    """The readers that can run, each with its interpreter."""
    return [
        (reader, options.peers if reader.peer else sys.executable)
        for reader in READERS
        if options.peers or not reader.peer
    ]


def medians(binary: Path, cell: Cell, options: argparse.Namespace) -> dict[str, Figures]:
    """Every reader's figures in one cell."""
    runs: dict[str, list[Figures]] = {}
    for _ in range(options.repeats):
        for reader, python in readers_of(options):
            figures = run(binary, reader, python, cell)
            if figures is not None:
                runs.setdefault(reader.name, []).append(figures)
    return {
        name: {key: statistics.median(one[key] for one in figures) for key in FORMATS}
        for name, figures in runs.items()
    }


def start_medians(binary: Path, options: argparse.Namespace) -> dict[str, float]:
    """CPU seconds of every reader's start."""
    runs: dict[str, list[float]] = {}
    for _ in range(options.repeats):
        for reader, python in readers_of(options):
            cpu_s = start_cpu_s(binary, reader, python)
            if cpu_s is not None:
                runs.setdefault(reader.name, []).append(cpu_s)
    return {name: statistics.median(values) for name, values in runs.items()}


def shown(found: dict[str, Figures]) -> list[str]:
    """One cell as a table."""
    lines = [f"| reader | {' | '.join(title for title, _ in FORMATS.values())} |", "|---" * 8 + "|"]
    for name, figures in found.items():
        values = [
            "" if math.isnan(figures[key]) else format(figures[key], form)
            for key, (_, form) in FORMATS.items()
        ]
        lines.append(f"| {name} | {' | '.join(values)} |")
    return lines


def load() -> str:
    """The machine's load averages."""
    return ", ".join(f"{value:.1f}" for value in os.getloadavg())


def conditions() -> str:
    """Where this is measured."""
    model = next(
        (
            line.partition(":")[2].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if "model name" in line
        ),
        platform.processor(),
    )
    return (
        f"{os.cpu_count()} cores of {model}, Linux {platform.release()}, Python {platform.python_version()}, "
        f"load average before {load()}"
    )


if __name__ == "__main__":
    main()
