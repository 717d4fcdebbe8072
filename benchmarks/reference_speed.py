"""Speed of the embedded server, plain against speculative, in one run.

    python benchmarks/reference_speed.py [--out FILE.json] [--quick]

Servers run side by side as processes and take turns, request by request, so that the machine's other load meets both
alike. Wall-clock figures are medians over turns, totals besides; processor seconds of the server processes are given
too, because they move less on a shared machine. Under realtime priority the kernel still gives ordinary processes 50 ms
of every second, which some answers meet and others do not. A server meets its highest load once unmeasured: memory
that is touched for the first time costs time once. Nothing here asserts: the figures are for docs/reference-server.md.
"""

from __future__ import annotations

import argparse
import asyncio
import inspect
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import time
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import httpx
import psutil
from tokenizers import Tokenizer

ROOT = Path(__file__).resolve().parents[1]
WEIGHTS = ROOT / "pytest_ddtree" / "reference" / "weights"
MODES: dict[str, list[str]] = {
    "plain": [],
    "chain": ["--speculative-algorithm", "DFLASH"],
    "b8-k4": ["--speculative-algorithm", "DDTREE", "--speculative-ddtree-budget", "8"],
    "b16-k4": ["--speculative-algorithm", "DDTREE", "--speculative-ddtree-budget", "16"],
}


@dataclass
class Server:
    name: str
    process: subprocess.Popen[bytes]
    url: str

    def cpu_seconds(self) -> float:
        times = psutil.Process(self.process.pid).cpu_times()
        return times.user + times.system

    def stop(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(20)


def start(name: str, flags: Sequence[str], log: Path) -> Server:
    command = [sys.executable, "-m", "pytest_ddtree.reference", "--port", "0", *flags]
    with log.open("wb") as stream:
        process = subprocess.Popen(command, stderr=stream, cwd=ROOT)
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and process.poll() is None:
        text = log.read_text(errors="replace")
        found = re.search(r"Uvicorn running on (http://[\d.:]+)", text)
        if found and "fired up" in text:
            return Server(name, process, found[1])
        time.sleep(0.1)
    raise RuntimeError(f"{name} did not start:\n{log.read_text(errors='replace')[-2000:]}")


def problem_prompts(tokenizer: Tokenizer, count: int) -> list[list[int]]:
    """Chat prompts of coding problems, as the model was trained to answer them."""
    prompts = []
    for file in sorted((ROOT / "evals" / "coding" / "problems").glob("*.toml")):
        data = tomllib.loads(file.read_text(encoding="utf-8"))
        statement = data.get("prompt") or data.get("statement")
        if isinstance(statement, str):
            text = f"<|im_start|>user\n{statement.strip()}<|im_end|>\n<|im_start|>assistant\n"
            prompts.append(tokenizer.encode(text, add_special_tokens=False).ids)
    return prompts[:count]


def code_prompts(tokenizer: Tokenizer, count: int, length: int) -> list[list[int]]:
    """Pieces of standard library modules, ``length`` tokens each."""
    prompts: list[list[int]] = []
    for module in (
        argparse,
        asyncio.events,
        inspect,
        json.decoder,
        statistics,
        subprocess,
        tomllib._parser,
        os,
    ):
        ids = tokenizer.encode(inspect.getsource(module), add_special_tokens=False).ids
        prompts += [ids[begin : begin + length] for begin in range(200, len(ids) - length, length + 700)]
    return prompts[:: max(1, len(prompts) // count)][:count]


def generate(
    client: httpx.Client, server: Server, ids: Sequence[int], tokens: int
) -> tuple[float, float, dict]:
    """(wall seconds, server's processor seconds, meta) of one answer, the cache flushed before."""
    client.post(f"{server.url}/flush_cache")
    params = {"temperature": 0, "max_new_tokens": tokens, "ignore_eos": True}
    cpu, began = server.cpu_seconds(), time.perf_counter()
    answer = client.post(
        f"{server.url}/generate", json={"input_ids": list(ids), "sampling_params": params}
    ).json()
    return time.perf_counter() - began, server.cpu_seconds() - cpu, answer["meta_info"]


def single(
    servers: Sequence[Server], prompts: Sequence[Sequence[int]], tokens: int
) -> dict[str, dict[str, float]]:
    """Concurrency 1: every prompt once per server, servers in turn."""
    walls: dict[str, list[float]] = {server.name: [] for server in servers}
    cpus: dict[str, list[float]] = {server.name: [] for server in servers}
    steps: dict[str, list[float]] = {server.name: [] for server in servers}
    with httpx.Client(timeout=600, trust_env=False) as client:
        for prompt in prompts:
            for server in servers:
                wall, cpu, meta = generate(client, server, prompt, tokens)
                walls[server.name].append(wall)
                cpus[server.name].append(cpu)
                steps[server.name].append(meta.get("spec_verify_ct", meta["completion_tokens"]))
    base = walls["plain"]
    return {
        name: {
            "tok_s": tokens / statistics.median(walls[name]),
            "speedup": statistics.median(
                [ours / theirs for ours, theirs in zip(base, walls[name], strict=True)]
            ),
            "total": sum(base) / sum(walls[name]),
            "cpu_ms_per_token": 1e3 * sum(cpus[name]) / (tokens * len(prompts)),
            "cpu_speedup": sum(cpus["plain"]) / sum(cpus[name]),
            "accept": tokens * len(prompts) / sum(steps[name]),
        }
        for name in walls
    }


async def load(server: Server, prompts: Sequence[Sequence[int]], concurrency: int, tokens: int) -> float:
    """Output tokens per second of a closed loop over all prompts."""
    queue = list(prompts)
    params = {"temperature": 0, "max_new_tokens": tokens, "ignore_eos": True}
    limits = httpx.Limits(max_connections=concurrency)
    async with httpx.AsyncClient(timeout=600, trust_env=False, limits=limits) as client:
        await client.post(f"{server.url}/flush_cache")

        async def worker() -> None:
            while queue:
                ids = list(queue.pop())
                await client.post(
                    f"{server.url}/generate", json={"input_ids": ids, "sampling_params": params}
                )

        began = time.perf_counter()
        await asyncio.gather(*(worker() for _ in range(concurrency)))
        return tokens * len(prompts) / (time.perf_counter() - began)


def prefill(server: Server, ids: Sequence[int]) -> tuple[float, float]:
    """Wall and processor seconds of a prompt with one answer token, best of three."""
    with httpx.Client(timeout=600, trust_env=False) as client:
        return min(generate(client, server, ids, 1)[:2] for _ in range(3))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=None)
    parser.add_argument("--quick", action="store_true", help="fewer prompts")
    parser.add_argument("--logs", type=Path, default=Path("/tmp"))
    args = parser.parse_args()
    tokenizer = Tokenizer.from_file(str(WEIGHTS / "target" / "tokenizer.json"))
    problems = problem_prompts(tokenizer, 8 if args.quick else 24)
    code = code_prompts(tokenizer, 8 if args.quick else 24, 200)
    result: dict[str, object] = {
        "date": time.strftime("%Y-%m-%d %H:%M"), "cores": os.cpu_count(), "load_before": os.getloadavg(),
    }  # fmt: skip
    servers = [start(name, flags, args.logs / f"reference_speed_{name}.log") for name, flags in MODES.items()]
    try:
        for title, prompts in (("problems", problems), ("code", code)):
            result[title] = rows = single(servers, prompts, 96)
            for name, row in rows.items():
                print(
                    f"{title:9} c1 {name:7}",
                    " ".join(f"{key} {value:8.2f}" for key, value in row.items()),
                    flush=True,
                )
        loads: dict[str, dict[int, float]] = {}
        for server in servers[:3]:
            asyncio.run(load(server, (code * 4)[:64], 32, 48))
        for concurrency in (1, 2, 4, 8, 16, 32):
            many = (code * 4)[: max(8, 2 * concurrency)]
            rates: dict[str, list[float]] = {}
            for _ in range(1 if args.quick else 3):
                for server in servers[:3]:
                    rate = asyncio.run(load(server, many, concurrency, 48))
                    rates.setdefault(server.name, []).append(rate)
            for name, measured in rates.items():
                loads.setdefault(name, {})[concurrency] = statistics.median(measured)
                print(
                    f"load      {name:7} c{concurrency:<3} {statistics.median(measured):8.1f} tok/s of",
                    " ".join(f"{rate:.0f}" for rate in measured),
                    flush=True,
                )
        result["load"] = loads
        long = [token for prompt in code_prompts(tokenizer, 100, 400) for token in prompt]
        fills: dict[str, dict[int, tuple[float, float]]] = {}
        for server in servers[:3]:
            for length in (512, 2048, 4096):
                wall, cpu = prefill(server, long[:length])
                fills.setdefault(server.name, {})[length] = (wall, cpu)
                print(f"prefill   {server.name:7} {length:5} wall {wall:6.3f} s cpu {cpu:6.3f} s", flush=True)
        result["prefill"] = fills
    finally:
        for server in servers:
            server.stop()
    result["load_after"] = os.getloadavg()
    print("machine load before and after:", result["load_before"], result["load_after"])
    if args.out:
        args.out.write_text(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
