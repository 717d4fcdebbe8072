"""Which planted fault is caught by which test, on the embedded server; and what a healthy server raises.

    python -m benchmarks.exactness.detection_matrix run --seeds 20 [--only NAME ...] [--results FILE]
    python -m benchmarks.exactness.detection_matrix healthy --sessions 100 [--results FILE]
    python -m benchmarks.exactness.detection_matrix table [--results FILE]

Every result is appended to the file at once, so an interrupted run goes on where it stopped.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import sys
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.exactness.embedded import (
    StartFailed,
    chain_arguments,
    make_prompts,
    server,
    subject,
    tree_arguments,
)
from pytest_ddtree.client.client import AsyncClient
from pytest_ddtree.exactness.baseline import measure_floor
from pytest_ddtree.exactness.contract.catalogue import CONTRACT, judge_evidence
from pytest_ddtree.exactness.contract.evidence import Subject
from pytest_ddtree.exactness.floor import NoiseFloor
from pytest_ddtree.exactness.levels import collect
from pytest_ddtree.exactness.prompts import Prompt
from pytest_ddtree.exactness.relations import acceptance, relations, window_relations
from pytest_ddtree.exactness.rule import FLOAT32, Rule
from pytest_ddtree.exactness.sampled import verify_sampling
from pytest_ddtree.grid import Config

RESULTS = Path(".ddtree/detection.jsonl")


@dataclass(frozen=True, slots=True)
class Planted:
    """A fault, the tests meant for it, and the config in which it shows."""

    tests: tuple[str, ...]
    plant: str = ""
    budget: int = 8
    window: int | None = None
    deadline_s: float = 90.0


def _at(
    *tests: str, plant: str = "", budget: int = 8, window: int | None = None, deadline_s: float = 90.0
) -> Planted:
    return Planted(tests, plant, budget, window, deadline_s)


MATRIX: dict[str, Planted] = {
    "accept_decays": _at("accept-over-time", plant="accept_decays:250"),
    "accept_over_reported": _at("usage-and-finish"),
    "batch_kv_mixup": _at("concurrent-8"),
    "batch_row_mixup": _at("concurrent-8"),
    "bonus_dropped": _at("serial"),
    "bonus_repeated": _at("serial"),
    "branches_dead": _at("relations", budget=32),
    "cache_leaks": _at("idle-and-whole"),
    "cached_over_reported": _at("warm-prefix"),
    "cancel_corrupts_neighbour": _at("shared-prefix-cancelled"),
    "chunk_lost": _at("streamed-text"),
    "chunk_repeated": _at("streamed-text"),
    "coin_reused": _at("sampling"),
    "compaction_misordered": _at("serial", "second-turn"),
    "compaction_off_by_one": _at("serial", "second-turn"),
    "compaction_skipped": _at("serial", "second-turn"),
    "crash_after": _at("concurrent-8", plant="crash_after:6"),
    "crash_beyond_block": _at("start", budget=16),
    "draft_accepted_uncorrected": _at("sampling"),
    "eos_ignored": _at("eos-in-run"),
    "error_in_stream": _at("serial"),
    "hang_mid_stream": _at("serial", plant="hang_mid_stream:4", deadline_s=15.0),
    "logit_bias_ignored": _at("logit-bias"),
    "long_context": _at("long-output"),
    "mask_block_size": _at("serial", "second-turn", budget=16),
    "mask_causal": _at("serial", "second-turn"),
    "mask_stale": _at("serial", "second-turn"),
    "max_tokens_overshoot": _at("few-tokens"),
    "min_p_ignored": _at("truncation"),
    "penalties_ignored": _at("penalties"),
    "position_off_by_one": _at("serial"),
    "positions_by_order": _at("serial", "second-turn"),
    "rare_token": _at("serial", plant="rare_token:100"),
    "siblings_visible": _at("serial", "second-turn"),
    "silent_fallback": _at("drafts-are-used"),
    "stale_generated": _at("second-turn"),
    "stale_prefix": _at("warm-prefix"),
    "stop_leaks": _at("stop-ids", "stop-strings"),
    "stop_string_missed": _at("stop-strings"),
    "top_k_ignored": _at("truncation"),
    "tree_ignores_temperature": _at("seeds", "sampling"),
    "usage_off_by_one": _at("usage-and-finish"),
    "window_ignored": _at("window", window=32),
    "window_off_by_page": _at("window", window=512),
    "wrong_features": _at("drafts-from-generated"),
    "wrong_kv_slot": _at("concurrent-8", plant="wrong_kv_slot:8"),
}
"""`slower` belongs to the speed gate; `rounding_noise` is no fault and is what `healthy` runs half of the
time."""


@dataclass(frozen=True, slots=True)
class Bench:
    """The healthy servers that tests compare with, and the floor on these prompts."""

    baseline: AsyncClient
    chain: AsyncClient
    floor: NoiseFloor
    rule: Rule


async def caught_by(test: str, under: Subject, bench: Bench, planted: Planted) -> str | None:
    """Why a test fails; None when it passes or skips."""
    if test == "sampling":
        verdict = await verify_sampling(
            under.client, bench.baseline, under.prompts * 1, config="b8", output=96
        )
        return None if verdict.passed else verdict.reasons[0]
    if test in ("relations", "window"):
        return await _relations(test, under, bench, planted)
    evidence = await CONTRACT[test].procedure(under)
    if evidence.problems:
        return evidence.problems[0]
    verdict_ = await judge_evidence(evidence, bench.floor, bench.rule, config="b8", baseline=bench.baseline)
    return None if verdict_ is None or verdict_.passed else f"{verdict_.kind}: {'; '.join(verdict_.reasons)}"


async def _relations(test: str, under: Subject, bench: Bench, planted: Planted) -> str | None:
    tree = Config("tree", planted.budget, 4, planted.window)
    if test == "relations":
        asked = make_prompts(under.seed, 24)
        other, config = bench.chain, Config("chain")
        seen = await collect(under.client, asked, output=128, concurrency=8, ignore_eos=True)
        known = await collect(other, asked, output=128, concurrency=8, ignore_eos=True)
        found = relations([acceptance(tree, seen), acceptance(config, known)], block_size=8)
    else:
        assert planted.window is not None
        length = planted.window * 5 if planted.window < 100 else 100
        asked = tuple(Prompt(p.tag, (p.ids * 8)[:length]) for p in under.prompts)
        seen = await collect(under.client, asked, output=64, concurrency=4, ignore_eos=True)
        with server(*tree_arguments(budget=planted.budget)) as url:
            async with AsyncClient(url) as client:
                known = await collect(client, asked, output=64, concurrency=4, ignore_eos=True)
        lengths = {prompt.tag: len(prompt.ids) for prompt in asked}
        full = acceptance(Config("tree", planted.budget, 4), known)
        found = window_relations(acceptance(tree, seen), full, lengths, output=64)
    broken = [relation.summary() for relation in found if relation.kind == "broken"]
    return broken[0] if broken else None


async def one(
    name: str, planted: Planted, seed: int, prompts: Sequence[Prompt], bench: Bench
) -> dict[str, Any]:
    """One fault under one seed: which of its tests catch it, and why."""
    started = time.monotonic()
    caught: dict[str, str | None] = {}
    arguments = tree_arguments(budget=planted.budget, window=planted.window)
    for test in planted.tests:
        try:
            with server(*arguments, "--plant", planted.plant or name) as url:
                async with AsyncClient(url) as client:
                    info = await client.server_info()
                    under = subject(
                        client, prompts, info, seed=seed, window=planted.window, deadline_s=planted.deadline_s
                    )
                    caught[test] = None if test == "start" else await caught_by(test, under, bench, planted)
        except StartFailed as error:
            caught[test] = (
                f"does not start: {str(error).strip().splitlines()[-1]}" if test == "start" else None
            )
    return {
        "fault": name,
        "seed": seed,
        "caught": caught,
        "seconds": round(time.monotonic() - started, 1),
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
    }


async def run(seeds: int, only: Sequence[str], results: Path) -> None:
    """Every fault under every seed that the results do not hold yet."""
    done = {(row["fault"], row["seed"]) for row in read(results) if "fault" in row}
    with server() as url, server(*chain_arguments()) as chain_url:
        async with AsyncClient(url) as baseline, AsyncClient(chain_url) as chain:
            for seed in range(1, seeds + 1):
                left = {
                    name: planted
                    for name, planted in MATRIX.items()
                    if (name, seed) not in done and (not only or name in only)
                }
                if not left:
                    continue
                prompts = make_prompts(seed, 12)
                _, floor = await measure_floor(
                    baseline, prompts, output=48, concurrencies=(1, 8), ignore_eos=True
                )
                bench = Bench(baseline, chain, floor, FLOAT32)
                for name, planted in left.items():
                    row = await one(name, planted, seed, prompts, bench)
                    append(results, row)
                    caught = ", ".join(f"{test}: {why or 'MISSED'}" for test, why in row["caught"].items())
                    print(f"{name} seed {seed} {row['seconds']} s: {caught[:230]}", flush=True)


HEALTHY = (
    "serial",
    "concurrent-8",
    "second-turn",
    "warm-prefix",
    "stop-ids",
    "usage-and-finish",
    "streamed-text",
)


async def healthy(sessions: int, results: Path) -> None:
    """Healthy sessions, every second one with bf16 arithmetic: each should raise no alarm."""
    done = {row["session"] for row in read(results) if "session" in row}
    for session in range(1, sessions + 1):
        if session in done:
            continue
        numerics = ["--numerics", "bf16"] if session % 2 else []
        prompts = make_prompts(10_000 + session, 12)
        alarms: dict[str, str] = {}
        with server(*numerics) as url, server(*numerics, *tree_arguments()) as tree_url:
            async with AsyncClient(url) as baseline, AsyncClient(tree_url) as client:
                _, floor = await measure_floor(
                    baseline, prompts, output=48, concurrencies=(1, 8, 32), ignore_eos=True
                )
                bench = Bench(baseline, client, floor, Rule() if numerics else FLOAT32)
                under = subject(client, prompts, await client.server_info(), seed=session)
                for test in HEALTHY:
                    why = await caught_by(test, under, bench, Planted(()))
                    if why is not None:
                        alarms[test] = why
        row = {"session": session, "numerics": "bf16" if numerics else "float32", "alarms": alarms}
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
    parser.add_argument("--results", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    # A terminated run takes its servers with it.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    if arguments.what == "run":
        asyncio.run(run(arguments.seeds, arguments.only, arguments.results))
    elif arguments.what == "healthy":
        asyncio.run(healthy(arguments.sessions, arguments.results))
    else:
        print(table(arguments.results))


if __name__ == "__main__":
    main()
