"""Robustness of the embedded server: random requests, half of them ending badly, and nothing may be left behind.

    python benchmarks/reference_soak.py [--requests 10000] [--seed 0] [--concurrency 24]

Tiny random weights, a small paged memory under pressure. A request is answered, cancelled by id, abandoned by its
client (before or in the middle of its stream), malformed, or refused by a full queue. At the end the server must be
alive and idle, every page must be free after a flush, and a repeated prompt must get the same tokens as at the start.
Exit status 1 when that is not so.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import httpx

from pytest_ddtree.reference.testing import TinyShape, write_checkpoints

ANSWER_S = 60.0
PROBE = {
    "input_ids": list(range(20, 60)),
    "sampling_params": {"temperature": 0, "max_new_tokens": 24, "ignore_eos": True},
}


def start(folder: Path) -> tuple[subprocess.Popen[bytes], str, Path]:
    target, draft = write_checkpoints(folder, TinyShape())
    log = folder / "server.log"
    command = [
        sys.executable, "-m", "pytest_ddtree.reference", "--port", "0", "--model-path", str(target),
        "--speculative-draft-model-path", str(draft), "--speculative-algorithm", "DDTREE",
        "--speculative-ddtree-budget", "8", "--max-total-tokens", "3072", "--page-size", "4",
        "--max-queued-requests", "20", "--max-running-requests", "8",
    ]  # fmt: skip
    with log.open("wb") as stream:
        process = subprocess.Popen(command, stderr=stream)
    for _ in range(600):
        text = log.read_text(errors="replace")
        found = re.search(r"running on (http://[\d.:]+)", text)
        if found and "fired up" in text:
            return process, found[1], log
        time.sleep(0.1)
    raise RuntimeError(log.read_text(errors="replace"))


def body(rng: random.Random, rid: str) -> dict[str, object]:
    """A request; prompts share prefixes often."""
    head = list(range(10, 10 + rng.choice([0, 8, 40, 120])))
    tail = [rng.randrange(6, 300) for _ in range(rng.randrange(1, 60))]
    params: dict[str, object] = {
        "max_new_tokens": rng.choice([1, 2, 9, 30, 120, 300]),
        "ignore_eos": rng.random() < 0.7,
    }
    if rng.random() < 0.5:
        params |= {"temperature": 0}
    if rng.random() < 0.2:
        params |= {"stop": ["e", "th"], "frequency_penalty": 0.3}
    if rng.random() < 0.1:
        params |= {"n": 3}
    return {"input_ids": head + tail, "sampling_params": params, "rid": rid, "stream": rng.random() < 0.6}


MALFORMED: list[bytes] = [
    b"{", b"[]", b'{"text": 1}', b'{"input_ids": [99999]}', b'{"text": "a", "sampling_params": {"temperature": -3}}',
    b'{"text": "a", "sampling_params": 7}', b"\x00\xff", b'{"text": "a", "return_logprob": true}',
]  # fmt: skip


async def one(client: httpx.AsyncClient, rng: random.Random, number: int) -> str:
    """Play one request; returns what became of it."""
    kind = rng.random()
    rid = f"soak-{number}"
    if kind < 0.1:
        path = rng.choice(["/generate", "/v1/completions", "/v1/chat/completions"])
        return f"malformed {(await client.post(path, content=rng.choice(MALFORMED))).status_code}"
    request = body(rng, rid)
    if kind < 0.25:
        request["stream"] = True
        async with client.stream("POST", "/generate", json=request) as response:
            seen = 0
            async for _ in response.aiter_lines():
                seen += 1
                if seen > rng.randrange(1, 12):
                    return "left in the stream"
        return "ended before it left"
    if kind < 0.4:
        try:
            await client.post("/generate", json=request, timeout=rng.choice([0.001, 0.02, 0.1]))
        except httpx.TimeoutException:
            return "left while waiting"
        return "answered before it left"
    task = asyncio.ensure_future(client.post("/generate", json=request))
    if kind < 0.5:
        await asyncio.sleep(rng.random() * 0.1)
        await client.post("/abort_request", json={"rid": rid})
    if kind > 0.995:
        await client.post("/flush_cache")
    answer = await task
    if answer.status_code == 200 and b'"type":"abort"' in answer.content:
        return "aborted"
    return f"answered {answer.status_code}"


async def state_of(client: httpx.AsyncClient) -> dict[str, object]:
    state = (await client.get("/server_info")).json()["internal_states"][0]
    return {key: state[key] for key in ("num_running_reqs", "num_queue_reqs", "kv_available_tokens")}


async def soak(url: str, requests: int, concurrency: int, seed: int) -> tuple[Counter[str], list[str]]:
    rng = random.Random(seed)
    outcomes: Counter[str] = Counter()
    problems: list[str] = []
    numbers = iter(range(requests))
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=url, timeout=ANSWER_S, limits=limits, trust_env=False) as client:
        first = (await client.post("/generate", json=PROBE)).json()["output_ids"]

        async def worker() -> None:
            for number in numbers:
                try:
                    outcomes[await one(client, rng, number)] += 1
                except httpx.TimeoutException as error:
                    problems.append(f"request {number}: {error!r}, state {await state_of(client)}")
                if number % 1000 == 999:
                    print(number + 1, dict(outcomes), flush=True)

        await asyncio.gather(*(worker() for _ in range(concurrency)))
        for _ in range(200):
            state = await state_of(client)
            if not state["num_running_reqs"] and not state["num_queue_reqs"]:
                break
            await asyncio.sleep(0.05)
        else:
            problems.append(
                f"not idle: {state['num_running_reqs']} running, {state['num_queue_reqs']} waiting"
            )
        flushed = await client.post("/flush_cache")
        info = (await client.get("/server_info")).json()
        free, total = info["internal_states"][0]["kv_available_tokens"], info["max_total_num_tokens"]
        if flushed.status_code != 200 or free != total:
            problems.append(f"flush {flushed.status_code}, {free} of {total} tokens free")
        if (await client.post("/generate", json=PROBE)).json()["output_ids"] != first:
            problems.append("the probe's answer changed")
    return outcomes, problems


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--concurrency", type=int, default=24)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        process, url, log = start(Path(folder))
        began = time.perf_counter()
        try:
            outcomes, problems = asyncio.run(soak(url, args.requests, args.concurrency, args.seed))
            if process.poll() is not None:
                problems.append(f"the server died with status {process.returncode}")
        finally:
            process.send_signal(signal.SIGTERM)
            status = process.wait(20)
        text = log.read_text(errors="replace")
        problems += [
            line for line in text.splitlines() if "Traceback" in line or "exception" in line.lower()
        ][:5]
        if problems:
            print(text[-3000:])
    print(dict(outcomes), f"{time.perf_counter() - began:.0f} s, exit status {status}")
    print("problems:", problems or "none")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
