"""Readers of token streams against a server that knows the truth; prints one table.

    python benchmarks/client/compare.py                       # the readers that this environment can run
    python benchmarks/client/compare.py --peers PATH/python   # and those of an interpreter with aiohttp and sglang
    python benchmarks/client/compare.py --quick

Server and client are pinned to one core each where there are two. Errors are against the server's own log.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
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
TICK_US = 20_000
PREFILL_US = 50_000
CHUNKS = 128


@dataclass(frozen=True)
class Reader:
    name: str
    script: str
    options: tuple[str, ...] = ()
    peer: bool = False


READERS = (
    Reader("ours, kernel stamps", "ours.py", ("kernel",)),
    Reader("ours, uvloop", "ours.py", ("uvloop",)),
    Reader("ours, plain asyncio", "ours.py", ("asyncio",)),
    Reader("httpx aiter_lines + json", "httpx_lines.py"),
    Reader("aiohttp lines + json", "aiohttp_lines.py", peer=True),
)


@dataclass(frozen=True)
class Truth:
    received: dict[str, int]
    sent: dict[str, list[tuple[int, int]]]


@contextmanager
def truth_server(binary: Path, tick_us: int, per_chunk: int, prefill_us: int) -> Iterator[str]:
    command = [str(binary), str(tick_us), str(per_chunk), str(prefill_us)]
    with subprocess.Popen(pinned(command, 0), stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield f"http://127.0.0.1:{int(process.stdout.readline())}"
        finally:
            process.kill()


def pinned(command: list[str], core: int) -> list[str]:
    return (
        ["taskset", "-c", str(core), *command]
        if (os.cpu_count() or 1) > 1 and shutil.which("taskset")
        else command
    )


def read_truth(url: str) -> Truth:
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


def run_reader(reader: Reader, python: str, url: str, streams: int, tokens: int) -> dict[str, Any] | None:
    command = [python, str(HERE / "readers" / reader.script), url, str(streams), str(tokens), *reader.options]
    done = subprocess.run(pinned(command, 1), capture_output=True, text=True, timeout=180, check=False)
    if done.returncode:
        print(f"  {reader.name}: {done.stderr.strip().splitlines()[-1:]}", file=sys.stderr)
        return None
    outcome: dict[str, Any] = json.loads(done.stdout)
    return outcome


def quantile(values: list[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def compare(outcome: dict[str, Any], truth: Truth) -> dict[str, float]:
    """Errors of what a reader saw, in microseconds and percent."""
    delays: list[float] = []
    ttft: list[float] = []
    seen_s = true_s = seen_tokens = 0.0
    first = last = true_first = true_last = None
    for stream in outcome["streams"]:
        sent = truth.sent[stream["rid"]]
        by_count = {tokens: at for at, tokens in sent}
        chunks = stream["chunks"]
        delays += [(at - by_count[tokens]) / 1e3 for at, tokens in chunks]
        ttft.append(((chunks[0][0] - stream["sent_ns"]) - (sent[0][0] - truth.received[stream["rid"]])) / 1e3)
        seen_tokens += chunks[-1][1] - chunks[0][1]
        seen_s += (chunks[-1][0] - chunks[0][0]) / 1e9
        true_s += (sent[-1][0] - sent[0][0]) / 1e9
        first = min(first or stream["sent_ns"], stream["sent_ns"])
        last = max(last or 0, chunks[-1][0])
        true_first = min(true_first or truth.received[stream["rid"]], truth.received[stream["rid"]])
        true_last = max(true_last or 0, sent[-1][0])
    count = len(delays)
    assert last is not None
    assert first is not None
    assert true_last is not None
    assert true_first is not None
    return {
        "cpu_us": outcome["cpu_s"] / count * 1e6,
        "delay_p50_us": quantile(delays, 0.5),
        "delay_p99_us": quantile(delays, 0.99),
        "ttft_mean_ms": statistics.fmean(ttft) / 1e3,
        "rate_error_pct": ((true_last - true_first) / (last - first) - 1) * 100,
        "token_time_error_pct": (seen_s / true_s - 1) * 100 if true_s else 0.0,
        "chunks_per_s": count / outcome["wall_s"],
    }


def build(folder: Path) -> Path:
    binary = folder / "truth_server"
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        raise SystemExit(
            "a C compiler is needed: the truth must not share its event loop's troubles with the readers"
        )
    subprocess.run([compiler, "-O2", "-o", str(binary), str(HERE / "truth_server.c")], check=True)
    return binary


def sglang_rust(python: str, url: str, streams: int, tokens: int) -> dict[str, Any] | None:
    """One run of sglang's Rust client; its own report and its CPU, its start included."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out.jsonl"
        command = [python, str(HERE / "readers" / "sglang_rust.py"), "--backend", "sglang", "--base-url", url]
        command += ["--model", "truth", "--dataset-name", "random-ids", "--num-prompts", str(streams)]
        command += [
            "--max-concurrency",
            str(streams),
            "--random-input-len",
            "16",
            "--random-range-ratio",
            "1",
        ]
        command += ["--random-output-len", str(tokens), "--tokenize-prompt", "--vocab-size", "4096"]
        command += ["--warmup-requests", "0", "--disable-tqdm", "--output-file", str(out)]
        script = (
            "import json,resource,subprocess,sys;"
            "p=subprocess.run(sys.argv[1:],stdout=sys.stderr);"
            "u=resource.getrusage(resource.RUSAGE_CHILDREN);"
            "print(json.dumps([p.returncode,u.ru_utime+u.ru_stime]))"
        )
        done = subprocess.run(
            pinned([sys.executable, "-c", script, *command], 1),
            capture_output=True,
            text=True,
            timeout=180,
            check=False,
        )
        code, cpu = json.loads(done.stdout)
        if code or not out.exists():
            print(f"  sglang rust client: {done.stderr.strip().splitlines()[-1:]}", file=sys.stderr)
            return None
        return {"cpu_s": cpu, **json.loads(out.read_text().splitlines()[-1])}


def conditions() -> str:
    model = next(
        (
            line.partition(":")[2].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if "model name" in line
        ),
        platform.processor(),
    )
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    return (
        f"{os.cpu_count()} cores of {model}, Linux {platform.release()}, Python {platform.python_version()}, "
        f"load average before {load}"
    )


RUST = "sglang rust client (its own report, its start included)"


def row(name: str, figures: dict[str, float]) -> str:
    formats = (
        "cpu_us:.1f",
        "delay_p50_us:.0f",
        "delay_p99_us:.0f",
        "ttft_mean_ms:+.2f",
        "rate_error_pct:+.2f",
    )
    cells = [
        "" if math.isnan(figures[key]) else format(figures[key], form)
        for key, form in (
            part.split(":") for part in (*formats, "token_time_error_pct:+.3f", "chunks_per_s:.0f")
        )
    ]
    return f"| {name} | {' | '.join(cells)} |"


HEADER = """| reader | CPU us/chunk | delay p50 us | delay p99 us | TTFT error ms | tok/s error % | time/token error % | chunks/s |
|---|---|---|---|---|---|---|---|"""


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
    cells = [(count, 1) for count in counts] + [(128, 4), (128, 0)]
    print(conditions())
    with tempfile.TemporaryDirectory() as folder:
        binary = build(Path(folder))
        for streams, per_chunk in cells:
            tokens = CHUNKS * (per_chunk or 4)
            print(
                f"\n### {streams} streams, {per_chunk or '1 to 7'} tokens a chunk, one chunk every {TICK_US // 1000} ms\n"
            )
            print(HEADER, flush=True)
            measure(options, binary, (TICK_US, per_chunk, PREFILL_US), streams, tokens)
        print("\n### As fast as possible: 64 streams of 500 chunks\n")
        print(HEADER, flush=True)
        measure(options, binary, (0, 1, 0), 64, 500)


def measure(
    options: argparse.Namespace, binary: Path, schedule: tuple[int, int, int], streams: int, tokens: int
) -> None:
    readers = [reader for reader in READERS if options.peers or not reader.peer]
    runs: dict[str, list[dict[str, float]]] = {}
    starts: list[float] = []
    for _ in range(options.repeats):
        for reader in readers:
            python = options.peers if reader.peer else sys.executable
            with truth_server(binary, *schedule) as url:
                outcome = run_reader(reader, python, url, streams, tokens)
                if outcome is not None:
                    runs.setdefault(reader.name, []).append(compare(outcome, read_truth(url)))
                    starts += [outcome["start_cpu_s"]] if "start_cpu_s" in outcome else []
        if options.peers:
            with truth_server(binary, *schedule) as url:
                rust = sglang_rust(options.peers, url, streams, tokens)
                if rust is not None:
                    runs.setdefault(RUST, []).append(compare_rust(rust, read_truth(url)))
    for name, figures in runs.items():
        middle = {key: statistics.median(one[key] for one in figures) for key in figures[0]}
        print(row(name, middle), flush=True)
    print(
        f"\nMedians of {options.repeats} runs. CPU seconds from the start of the interpreter to a client that is "
        f"ready to send: {statistics.median(starts):.2f}"
    )


def compare_rust(rust: dict[str, Any], truth: Truth) -> dict[str, float]:
    """What its own report says against the truth; it keeps no arrivals of single chunks."""
    chunks = sum(map(len, truth.sent.values()))
    waits = [truth.sent[rid][0][0] - at for rid, at in truth.received.items() if rid in truth.sent]
    tokens = sum(sent[-1][1] for sent in truth.sent.values())
    begin, end = min(truth.received.values()), max(sent[-1][0] for sent in truth.sent.values())
    rate = tokens / ((end - begin) / 1e9)
    return {
        "cpu_us": rust["cpu_s"] / chunks * 1e6,
        "delay_p50_us": math.nan,
        "delay_p99_us": math.nan,
        "ttft_mean_ms": rust["mean_ttft_ms"] - statistics.fmean(waits) / 1e6,
        "rate_error_pct": (rust["output_throughput"] / rate - 1) * 100,
        "token_time_error_pct": math.nan,
        "chunks_per_s": chunks / rust["duration"],
    }


if __name__ == "__main__":
    main()
