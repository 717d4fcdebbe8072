"""The server that knows the truth, the readers, and what one run of a reader says about it."""

from __future__ import annotations

import json
import math
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
KERNEL = "ours, kernel stamps"
UVLOOP = "ours, uvloop"
HTTPX = "httpx aiter_lines + json"
AIOHTTP = "aiohttp lines + json"
RUST = "sglang rust client (its own report, its start included)"

Figures = dict[str, float]
"""cpu_us (per chunk), delay_p50_us, delay_p99_us, ttft_mean_ms, rate_error_pct, token_time_error_pct, chunks_per_s; NaN: not told."""


@dataclass(frozen=True)
class Reader:
    name: str
    script: str
    options: tuple[str, ...] = ()
    peer: bool = False


READERS = (
    Reader(KERNEL, "ours.py", ("kernel",)),
    Reader(UVLOOP, "ours.py", ("uvloop",)),
    Reader("ours, plain asyncio", "ours.py", ("asyncio",)),
    Reader(HTTPX, "httpx_lines.py"),
    Reader(AIOHTTP, "aiohttp_lines.py", peer=True),
    Reader(RUST, "sglang_rust.py", peer=True),
)


@dataclass(frozen=True)
class Cell:
    """Streams at once, chunks of each, tokens a chunk (0: 1 to 7), and the server's step in us (0: as fast as possible)."""

    streams: int
    per_chunk: int
    chunks: int = 128
    tick_us: int = 20_000

    def __str__(self) -> str:
        if not self.tick_us:
            return f"{self.streams} streams of {self.chunks} chunks, as fast as possible"
        tokens = "1 token" if self.per_chunk == 1 else f"{self.per_chunk or '1 to 7'} tokens"
        return f"{self.streams} streams, {tokens} a chunk"

    @property
    def tokens(self) -> int:
        """Tokens of one stream."""
        return self.chunks * (self.per_chunk or 4)

    @property
    def schedule(self) -> tuple[str, str, str]:
        """The truth server's arguments."""
        return str(self.tick_us), str(self.per_chunk), str(50_000 if self.tick_us else 0)


@dataclass(frozen=True)
class Truth:
    received: dict[str, int]
    sent: dict[str, list[tuple[int, int]]]


def build(folder: Path) -> Path:
    """The truth server, compiled."""
    binary = folder / "truth_server"
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        raise SystemExit(
            "a C compiler is needed: the truth must not share its event loop's troubles with the readers"
        )
    subprocess.run([compiler, "-O2", "-o", str(binary), str(HERE / "truth_server.c")], check=True)
    return binary


def run(binary: Path, reader: Reader, python: str, cell: Cell) -> Figures | None:
    """One run of a reader, compared with the truth; None (and why, on standard error) where it failed."""
    with _truth_server(binary, cell) as url:
        if reader.name == RUST:
            told = _rust(reader, python, url, cell)
            return None if told is None else _compare_rust(told, _read_truth(url))
        asked = [url, str(cell.streams), str(cell.tokens), *reader.options]
        output, _ = _run(reader, [python, str(HERE / "readers" / reader.script), *asked])
        return None if output is None else _compare(json.loads(output), _read_truth(url))


def start_cpu_s(binary: Path, reader: Reader, python: str) -> float | None:
    """CPU seconds of a whole process that reads one stream of one chunk: nearly all of it is its start."""
    cell = Cell(1, 1, chunks=1, tick_us=0)
    with _truth_server(binary, cell) as url:
        if reader.name == RUST:
            told = _rust(reader, python, url, cell)
            return None if told is None else float(told["cpu_s"])
        asked = [url, "1", "1", *reader.options]
        output, cpu_s = _run(reader, [python, str(HERE / "readers" / reader.script), *asked])
        return None if output is None else cpu_s


@contextmanager
def _truth_server(binary: Path, cell: Cell) -> Iterator[str]:
    with subprocess.Popen(
        _pinned([str(binary), *cell.schedule], 0), stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        try:
            yield f"http://127.0.0.1:{int(process.stdout.readline())}"
        finally:
            process.kill()


def _pinned(command: list[str], core: int) -> list[str]:
    return (
        ["taskset", "-c", str(core), *command]
        if (os.cpu_count() or 1) > 1 and shutil.which("taskset")
        else command
    )


def _run(reader: Reader, command: list[str]) -> tuple[str | None, float]:
    """Standard output (None where it failed) and CPU seconds of a reader; the truth server is not waited for meanwhile."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(_pinned(command, 1), capture_output=True, text=True, timeout=180, check=False)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    if done.returncode:
        print(f"  {reader.name}: {done.stderr.strip().splitlines()[-1:]}", file=sys.stderr)
        return None, cpu_s
    return done.stdout, cpu_s


def _rust(reader: Reader, python: str, url: str, cell: Cell) -> dict[str, Any] | None:
    """One run of sglang's Rust client; its own report and its CPU, its start included."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out.jsonl"
        given = {
            "backend": "sglang",
            "base-url": url,
            "model": "truth",
            "dataset-name": "random-ids",
            "num-prompts": cell.streams,
            "max-concurrency": cell.streams,
            "random-input-len": 16,
            "random-output-len": cell.tokens,
            "random-range-ratio": 1,
            "vocab-size": 4096,
            "warmup-requests": 0,
            "output-file": out,
        }
        command = [python, str(HERE / "readers" / reader.script), "--tokenize-prompt", "--disable-tqdm"]
        for name, value in given.items():
            command += [f"--{name}", str(value)]
        output, cpu_s = _run(reader, command)
        if output is None or not out.exists():
            return None
        return {"cpu_s": cpu_s, **json.loads(out.read_text().splitlines()[-1])}


def _read_truth(url: str) -> Truth:
    with urllib.request.urlopen(url + "/log", timeout=30) as response:
        text = response.read().decode()
    received: dict[str, int] = {}
    sent: dict[str, list[tuple[int, int]]] = {}
    for line in text.splitlines():
        kind, rid, at, tokens = line.split()
        if kind == "R":
            received[rid] = int(at)
        else:
            sent.setdefault(rid, []).append((int(at), int(tokens)))
    return Truth(received, sent)


def _quantile(values: list[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def _compare(outcome: dict[str, Any], truth: Truth) -> Figures:
    """Errors of what a reader saw, in microseconds and percent."""
    delays: list[float] = []
    ttft: list[float] = []
    seen_s = true_s = 0.0
    streams = outcome["streams"]
    for stream in streams:
        sent = truth.sent[stream["rid"]]
        by_count = {tokens: at for at, tokens in sent}
        chunks = stream["chunks"]
        delays += [(at - by_count[tokens]) / 1e3 for at, tokens in chunks]
        ttft.append(((chunks[0][0] - stream["sent_ns"]) - (sent[0][0] - truth.received[stream["rid"]])) / 1e3)
        seen_s += (chunks[-1][0] - chunks[0][0]) / 1e9
        true_s += (sent[-1][0] - sent[0][0]) / 1e9
    first, last = min(one["sent_ns"] for one in streams), max(one["chunks"][-1][0] for one in streams)
    true_first = min(truth.received[one["rid"]] for one in streams)
    true_last = max(truth.sent[one["rid"]][-1][0] for one in streams)
    return {
        "cpu_us": outcome["cpu_s"] / len(delays) * 1e6,
        "delay_p50_us": _quantile(delays, 0.5),
        "delay_p99_us": _quantile(delays, 0.99),
        "ttft_mean_ms": statistics.fmean(ttft) / 1e3,
        "rate_error_pct": ((true_last - true_first) / (last - first) - 1) * 100,
        "token_time_error_pct": (seen_s / true_s - 1) * 100 if true_s else 0.0,
        "chunks_per_s": len(delays) / outcome["wall_s"],
    }


def _compare_rust(told: dict[str, Any], truth: Truth) -> Figures:
    """What its own report says against the truth; it keeps no arrivals of single chunks."""
    chunks = sum(map(len, truth.sent.values()))
    waits = [truth.sent[rid][0][0] - at for rid, at in truth.received.items() if rid in truth.sent]
    tokens = sum(sent[-1][1] for sent in truth.sent.values())
    begin, end = min(truth.received.values()), max(sent[-1][0] for sent in truth.sent.values())
    rate = tokens / ((end - begin) / 1e9)
    return {
        "cpu_us": told["cpu_s"] / chunks * 1e6,
        "delay_p50_us": math.nan,
        "delay_p99_us": math.nan,
        "ttft_mean_ms": told["mean_ttft_ms"] - statistics.fmean(waits) / 1e6,
        "rate_error_pct": (told["output_throughput"] / rate - 1) * 100,
        "token_time_error_pct": math.nan,
        "chunks_per_s": chunks / told["duration"],
    }
