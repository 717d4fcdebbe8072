"""Answers of the embedded NumPy engine to the contact prompts, as JSON for `first_contact.py --engine-answers`.

    python benchmarks/gpu/engine_answers.py --out engine-answers.json

Needs no GPU. Each config is one server of `python -m pytest_ddtree.reference`, asked greedily.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from arguments import checkpoint, leave
from contact_prompts import contact_prompts
from launching import Started, wait_all

import pytest_ddtree
from pytest_ddtree.client.client import AsyncClient
from pytest_ddtree.client.records import Record
from pytest_ddtree.exactness.levels import collect
from pytest_ddtree.exactness.prompts import Prompt, emitted_ids

WEIGHTS = Path(pytest_ddtree.__file__).parent / "reference" / "weights"
CONFIGS: dict[str, tuple[str, ...]] = {
    "baseline": (),
    "chain": ("--speculative-algorithm", "DFLASH"),
    "b7-k7": (
        *("--speculative-algorithm", "DDTREE"),
        *("--speculative-ddtree-budget", "7", "--speculative-ddtree-topk", "7"),
    ),
}


async def answers(url: str, prompts: Sequence[Prompt], output: int, concurrency: int) -> dict[str, Record]:
    """Greedy answers, tag -> record."""
    async with AsyncClient(url, timeout_s=1800) as client:
        return await collect(client, prompts, output=output, concurrency=concurrency)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--model", type=checkpoint, default=WEIGHTS / "target")
    parser.add_argument("--draft", type=checkpoint, default=WEIGHTS / "draft")
    parser.add_argument("--output", type=int, default=96, help="tokens per answer")
    parser.add_argument("--concurrency", type=int, default=4)
    options = parser.parse_args()
    prompts = contact_prompts(options.model)
    result: dict[str, object] = {"output": options.output, "prompts": {p.tag: list(p.ids) for p in prompts}}
    for name, extra in CONFIGS.items():
        argv = [sys.executable, "-m", "pytest_ddtree.reference", "--model-path", str(options.model), *extra]
        if extra:
            argv += ["--speculative-draft-model-path", str(options.draft)]
        server = Started(name=name, argv=argv, log=options.out.with_suffix(f".{name}.log"))
        server.start()
        try:
            if not wait_all([server], 120):
                raise SystemExit(f"{name}: the server did not become ready, see {server.log}")
            began = time.monotonic()
            records = asyncio.run(answers(server.url, prompts, options.output, options.concurrency))
        finally:
            server.stop()
        steps = sum(record.verify_steps or 0 for record in records.values())
        tokens = sum(record.completion_tokens for record in records.values())
        result[name] = {
            tag: {"ids": list(emitted_ids(record)), "verify_steps": record.verify_steps}
            for tag, record in records.items()
        }
        accept = f", accept length {tokens / steps:.3f}" if steps else ""
        print(f"{name}: {tokens} tokens in {time.monotonic() - began:.1f} s{accept}", flush=True)
    options.out.write_text(json.dumps(result))
    return 0


if __name__ == "__main__":
    leave(main)
