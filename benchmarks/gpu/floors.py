"""Noise floors: what a non-speculative server does against itself, by batch rows, context, precision and flags.

    python benchmarks/gpu/floors.py --model TARGET --out floors.json --server NAME=URL [--server NAME=URL ...]
        [--contexts 1024,8192] [--rows 1,8,32,64,9,72,288] [--prompts 512] [--compare NAME=OTHER]

For every server, context and number of requests in flight: greedy answers, judged token by token by the prefill of the same
server. `--compare` asks one server the prompts of another at concurrency 1 and 8 and counts the answers that are equal, token
by token: that is what `--enable-deterministic-inference` is about. Nothing here asserts; the JSON says what was seen.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from arguments import checkpoint, leave, pair
from contact_prompts import document_prompts

from pytest_ddtree.client.client import AsyncClient
from pytest_ddtree.client.records import Record
from pytest_ddtree.errors import Infrastructure
from pytest_ddtree.exactness.judged import all_gaps
from pytest_ddtree.exactness.levels import collect, teacher_force
from pytest_ddtree.exactness.prompts import Prompt, emitted_ids

MOST_TOKENS = 600_000
"""Prompt tokens in flight beyond which a condition is left out."""


async def condition(
    client: AsyncClient, prompts: Sequence[Prompt], rows: int, output: int, serial: Mapping[str, Record]
) -> tuple[dict[str, Any], dict[str, Record]]:
    """Off tokens and gaps of the answers at `rows` requests in flight, and how many equal those asked one at a time."""
    began = time.monotonic()
    records = await collect(client, prompts, output=output, concurrency=rows, ignore_eos=True)
    answers = await teacher_force(client, prompts, records, concurrency=32)
    gaps = sorted((float(gap) for gap in all_gaps(answers)), reverse=True)
    off, tokens = sum(answer.off for answer in answers), sum(answer.tokens for answer in answers)
    # Answers asked one at a time are their own reference; without them there is none.
    reference = records if rows == 1 else serial
    common = [tag for tag in records if tag in reference]
    equal = sum(emitted_ids(records[tag]) == emitted_ids(reference[tag]) for tag in common)
    return {
        "rows": rows,
        "prompts": len(prompts),
        "tokens": tokens,
        "off": off,
        "share": round(off / tokens, 6) if tokens else None,
        # All of them: what law the tail follows is read off single gaps, not off counts above a bound.
        "gaps_nats": [round(gap, 4) for gap in gaps if gap > 0],
        "mean_off_nats": round(sum(gaps) / off, 4) if off else 0.0,
        "over_half_nat": sum(gap > 0.5 for gap in gaps),
        "over_1_nat": sum(gap > 1 for gap in gaps),
        "equal_to_serial": f"{equal} of {len(common)}" if common else None,
        "seconds": round(time.monotonic() - began, 1),
    }, records


async def one_server(name: str, url: str, options: argparse.Namespace, keep: Any) -> None:
    """Every condition of one server, one after the other."""
    async with AsyncClient(url, timeout_s=240) as client:
        for context in options.contexts:
            made = document_prompts(options.model, {context: max(*options.rows, options.prompts)}, seed=5)
            serial: dict[str, Record] = {}
            for rows in sorted(options.rows):
                if rows * context > MOST_TOKENS and rows > 1:
                    continue
                count = max(rows, min(options.prompts, MOST_TOKENS // context))
                try:
                    figures, records = await condition(client, made[:count], rows, options.output, serial)
                except Infrastructure as error:
                    figures, records = {"rows": rows, "failed": str(error)[:300]}, {}
                if rows == 1:
                    serial = records
                keep(name, context, figures)


async def compared(
    first: str, second: str, urls: Mapping[str, str], options: argparse.Namespace
) -> dict[str, Any]:
    """Answers of `second` to the prompts of `first`: equal ones, and off tokens under the prefill of `first`."""
    prompts = [*document_prompts(options.model, {60: 16, 300: 16, 1024: 16}, seed=6)]
    found: dict[str, Any] = {}
    async with AsyncClient(urls[first]) as base, AsyncClient(urls[second]) as other:
        reference = await collect(base, prompts, output=options.output, concurrency=1, ignore_eos=True)
        for client, what, rows in ((base, first, 8), (other, second, 1), (other, second, 8)):
            records = await collect(client, prompts, output=options.output, concurrency=rows, ignore_eos=True)
            answers = await teacher_force(base, prompts, records, concurrency=16)
            equal = sum(emitted_ids(records[tag]) == emitted_ids(reference[tag]) for tag in records)
            steps = sum(record.verify_steps or 0 for record in records.values())
            tokens = sum(record.completion_tokens for record in records.values())
            found[f"{what}@{rows}"] = {
                "equal": f"{equal} of {len(records)}",
                "off": sum(answer.off for answer in answers),
                "tokens": tokens,
                "largest_nats": round(max((float(gap) for gap in all_gaps(answers)), default=0.0), 4),
                "accept_length": round(tokens / steps, 3) if steps else None,
            }
    return found


async def everything(options: argparse.Namespace) -> list[str]:
    """All floors and comparisons, on disk as they come; returns the names of those that failed."""
    urls = dict(options.server)
    failed: list[str] = []
    result: dict[str, Any] = {"floors": {}, "compared": {}}
    began = time.monotonic()

    def write(label: str, value: Any) -> None:
        if "failed" in value:
            failed.append(label)
        options.out.write_text(json.dumps(result, indent=1))
        print(f"[{time.monotonic() - began:6.1f} s] {label}: {json.dumps(value)}", flush=True)

    def keep(name: str, context: int, figures: dict[str, Any]) -> None:
        result["floors"].setdefault(name, {}).setdefault(str(context), []).append(figures)
        write(f"{name} ctx{context}", figures)

    async def comparison(first: str, second: str) -> None:
        try:
            found = await compared(first, second, urls, options)
        except Infrastructure as error:
            found = {"failed": str(error)[:300]}
        result["compared"][f"{first}={second}"] = found
        write(f"{first}={second}", found)

    floors = [
        one_server(name, url, options, keep) for name, url in urls.items() if name not in options.only_compare
    ]
    await asyncio.gather(*(comparison(*both) for both in options.compare), *floors)
    return failed


def numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=checkpoint, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--server", type=pair, action="append", default=[], required=True, metavar="NAME=URL")
    parser.add_argument("--compare", type=pair, action="append", default=[], metavar="NAME=OTHER")
    parser.add_argument(
        "--only-compare", action="append", default=[], metavar="NAME", help="no floor of this server"
    )
    parser.add_argument("--contexts", type=numbers, default=[1024, 8192])
    parser.add_argument("--rows", type=numbers, default=[1, 8, 9, 32, 64, 72, 288])
    parser.add_argument(
        "--prompts",
        type=int,
        default=32,
        help="prompts of a condition, or as many as it has rows if those are more",
    )
    parser.add_argument("--output", type=int, default=64)
    options = parser.parse_args()
    named = {name for both in options.compare for name in both} | set(options.only_compare)
    if unknown := sorted(named - set(dict(options.server))):
        parser.error(f"no --server is called {', '.join(unknown)}")
    failed = asyncio.run(everything(options))
    if failed:
        print(f"not measured: {', '.join(failed)}; {options.out} says why", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    leave(main)
