"""Our client and SGLang's own benchmark clients on the same cell of the same server, in turns.

    python benchmarks/gpu/client_compare.py --url http://127.0.0.1:30000 --model TARGET --out compare.json \\
        [--cell 1024:8:256 ...] [--turns 2] [--requests 8] [--rust-client "python -m sglang.benchmark.rust_client"]

All send prompts of the same length, ask for exactly as many tokens, keep the same number of requests in flight, start all
streams at once and empty the prefix cache first. `--requests` is how many each stream answers in one load; turns go A B, B A,
A B, ... so that an even drift of the server cancels. The figures of each go to the JSON as they are, and under `ratio` the first of
our two loads over theirs, turn by turn: each is one load after a warm-up, and a second one finds the server warmer.
"""

from __future__ import annotations

import argparse
import json
import shlex
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from arguments import cell, checkpoint, leave

from pytest_ddtree.workload.prompts import PromptMaker

KEPT = (
    *(
        "duration",
        "completed",
        "total_input_tokens",
        "total_output_tokens",
        "output_throughput",
        "concurrency",
        "accept_length",
    ),
    *(
        "mean_ttft_ms",
        "median_ttft_ms",
        "p90_ttft_ms",
        "mean_tpot_ms",
        "median_tpot_ms",
        "median_itl_ms",
        "p99_itl_ms",
    ),
)
"""What is kept of the other client's figures, under its names."""


def prompts_of(options: argparse.Namespace, cell: tuple[int, int, int], seed: int) -> list[str]:
    """Texts of exactly the cell's prompt length, one a request."""
    context, concurrency, _ = cell
    maker = PromptMaker(options.model, workload="code", seed=1000 + seed)
    made = maker.make_many(context, concurrency * options.requests, purpose="theirs")
    return [maker.decode(one.ids) for one in made]


def theirs(
    options: argparse.Namespace, cell: tuple[int, int, int], folder: Path, seed: int
) -> dict[str, Any]:
    """One run of `sglang.bench_serving` over prompts of exactly the cell's length."""
    _, concurrency, output = cell
    prompts = prompts_of(options, cell, seed)
    data, result = folder / f"{seed}.jsonl", folder / f"{seed}.out.jsonl"
    lines = [{"conversations": [{"content": text}, {"content": "answer"}]} for text in prompts]
    data.write_text("".join(json.dumps(line) + "\n" for line in lines))
    argv = [sys.executable, "-m", "sglang.bench_serving", "--dataset-name", "custom"]
    argv += ["--dataset-path", str(data), *load_of(options, len(prompts), concurrency, output, seed)]
    return figures_of(argv, result)


def rust(options: argparse.Namespace, cell: tuple[int, int, int], folder: Path, seed: int) -> dict[str, Any]:
    """One run of SGLang's Rust client on the same prompts; it reads them as a ShareGPT file."""
    _, concurrency, output = cell
    prompts = prompts_of(options, cell, seed)
    data, result = folder / f"{seed}.json", folder / f"{seed}.rust.jsonl"
    turns = [[{"from": "human", "value": text}, {"from": "gpt", "value": "answer " * 8}] for text in prompts]
    data.write_text(json.dumps([{"conversations": one} for one in turns]))
    argv = [*shlex.split(options.rust_client), "--dataset-name", "sharegpt", "--dataset-path", str(data)]
    argv += load_of(options, len(prompts), concurrency, output, seed)
    return figures_of(argv, result)


def load_of(options: argparse.Namespace, count: int, concurrency: int, output: int, seed: int) -> list[str]:
    """The flags that both clients of SGLang have in common."""
    return [
        *("--backend", "sglang", "--base-url", options.url, "--num-prompts", str(count)),
        *("--max-concurrency", str(concurrency), "--sharegpt-output-len", str(output), "--seed", str(seed)),
        *("--model", str(options.model), "--tokenizer", str(options.model)),
        *("--flush-cache", "--disable-tqdm", "--warmup-requests", str(concurrency)),
    ]


def figures_of(argv: list[str], result: Path) -> dict[str, Any]:
    """Run one of SGLang's clients: what is kept of the line that it writes, or the end of what it printed."""
    argv = [*argv, "--output-file", str(result)]
    done = subprocess.run(argv, capture_output=True, text=True, errors="replace", timeout=180, check=False)
    if done.returncode != 0 or not result.exists():
        return {"failed": (done.stdout + done.stderr)[-1500:]}
    found = json.loads(result.read_text().splitlines()[-1])
    return {key: found[key] for key in KEPT if found.get(key) is not None}


def ours(options: argparse.Namespace, cell: tuple[int, int, int], folder: Path, seed: int) -> dict[str, Any]:
    """One run of `pytest-ddtree measure` on the same cell."""
    context, concurrency, output = cell
    result = folder / f"{seed}.ours.json"
    argv = [
        sys.executable,
        "-c",
        "import sys; from pytest_ddtree.cli import main; sys.exit(main())",
        "measure",
        options.url,
    ]
    argv += [
        "--context",
        str(context),
        "--concurrency",
        str(concurrency),
        "--output",
        str(output),
        "--equal-lengths",
    ]
    argv += ["--turnovers", str(options.requests), "--max-rounds", "2", "--tokenizer", str(options.model)]
    argv += ["--together", "--seed", str(seed), "--json", str(result)]
    done = subprocess.run(argv, capture_output=True, text=True, errors="replace", timeout=180, check=False)
    if done.returncode != 0:
        return {"failed": (done.stdout + done.stderr)[-1500:]}
    return {"printed": done.stdout[-3000:], **json.loads(result.read_text())}


def ratios(cell: dict[str, Any], other: str) -> list[dict[str, float]]:
    """Ours over one of theirs, for each turn that both have ended: tok/s, median TTFT and median time per token."""
    found = []
    for one, two in zip(cell.get("ours", []), cell.get(other, []), strict=False):
        if "failed" in one or "failed" in two:
            continue
        figures = one["rounds"][0]
        found.append(
            {
                "tok_s": figures["output_tok_s"] / two["output_throughput"],
                "ttft": 1000 * figures["ttft"]["p50"] / two["median_ttft_ms"],
                "time_per_token": 1000 * figures["time_per_token"]["p50"] / two["median_tpot_ms"],
            }
        )
    return found


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--url", required=True)
    parser.add_argument("--model", type=checkpoint, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument(
        "--cell", type=cell, action="append", default=[], metavar="CONTEXT:CONCURRENCY:OUTPUT"
    )
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--requests", type=int, default=8)
    parser.add_argument(
        "--rust-client", default="", metavar="COMMAND", help="SGLang's Rust client, where there is one"
    )
    options = parser.parse_args()
    clients = [("ours", ours), ("sglang", theirs), *([("rust", rust)] if options.rust_client else [])]
    result: dict[str, Any] = {}
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        for text in options.cell or ["1024:8:256"]:
            context, concurrency, output = (int(part) for part in text.split(":"))
            for turn in range(options.turns):
                for name, run in clients if turn % 2 == 0 else clients[::-1]:
                    found = run(
                        options, (context, concurrency, output), Path(folder), 10 * turn + concurrency
                    )
                    seen = result.setdefault(text, {})
                    seen.setdefault(name, []).append(found)
                    seen["ratio"] = {other: ratios(seen, other) for other, _ in clients[1:]}
                    options.out.write_text(json.dumps(result, indent=1))
                    print(
                        f"[{time.monotonic() - began:6.1f} s] {text} {name}: {json.dumps(found)[:700]}",
                        flush=True,
                    )
    failed = sorted(
        {name for found in result.values() for name, _ in clients for one in found[name] if "failed" in one}
    )
    if failed:
        print(f"loads failed: {', '.join(failed)}; {options.out} says why", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    leave(main)
