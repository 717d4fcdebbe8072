"""A sweep that is killed at random moments and resumed, over and over, until it is complete. Run as a process: it forks.

Usage: killed_sweep.py FILE KILLS SEED. Each child opens the store, asks what remains and appends rounds; it is killed with SIGKILL at
a random moment, in the middle of a record too. Between the kills the file must only ever have grown.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from pytest_ddtree.grid import CellKey
from pytest_ddtree.results.model import Round
from pytest_ddtree.results.runs import read_run
from pytest_ddtree.results.store import Store, parse

CELLS = tuple(
    (config, CellKey(context, width))
    for config in ("baseline", "b8-k4-wnone", "b16-k4-wnone")
    for context in (60, 512)
    for width in (1, 4, 8)
)


@dataclass(frozen=True, slots=True)
class Step:
    """One round of one cell of one config."""

    config: str
    key: CellKey
    number: int


def remaining(rounds: int, measured: Iterable[Round]) -> list[Step]:
    """The rounds of the sweep that nobody measured yet, in order; the first is the one to go on with."""
    done = {(one.config, one.key, one.number) for one in measured}
    plan = (Step(config, key, number) for config, key in CELLS for number in range(rounds))
    return [step for step in plan if (step.config, step.key, step.number) not in done]


def measured(step: Step) -> Round:
    """A round whose figures follow from its name, so that runs can be compared."""
    number = zlib.crc32(str(step).encode()) % 1000
    return Round(
        config=step.config,
        key=step.key,
        number=step.number,
        requests=step.key.concurrency,
        tokens=64 * step.key.concurrency,
        wall_s=0.5 + number / 1000,
        ttft_s=tuple(0.01 + i / 1000 for i in range(step.key.concurrency)),
        time_per_token_s=(0.002,) * step.key.concurrency,
        latency_s=(0.3,) * step.key.concurrency,
        verify_steps=None,
        cached_tokens=0,
        decode_tok_s=None,
    )


def sweep(path: Path, rounds: int, pause: float = 0.0) -> None:
    """Go on with the next unmeasured round until there is none."""
    with Store(path) as store:
        known = [Round.from_json(record["round"]) for record in store.records if record["kind"] == "round"]
        if not store.records:
            store.append("run", plugin="test", started="2026-01-01", settings={})
        for step in remaining(rounds, known):
            time.sleep(pause)
            store.append("round", round=measured(step).as_json())


def rounds_for(kills: int) -> int:
    """Rounds a cell, so many that the sweep outlives the kills."""
    return 2 + kills // 8


def whole(data: bytes) -> bytes:
    return data[: data.rfind(b"\n") + 1]


def main(path: Path, kills: int, seed: int) -> None:
    generator = random.Random(seed)
    # Each life lasts long enough for a record or two, so that the kills are spread over the whole sweep.
    rounds = rounds_for(kills)
    before = b""
    lives = 0
    while lives < kills:
        child = os.fork()
        if child == 0:
            try:
                sweep(path, rounds, pause=0.0005)
            finally:
                os._exit(0)
        time.sleep(generator.uniform(0.0, 0.03))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        lives += 1
        data = path.read_bytes() if path.exists() else b""
        if not data.startswith(whole(before)):
            raise AssertionError(f"kill {lives}: something that was written is gone")
        before = data
        parse(data, str(path))
    at_the_end = len(read_run(path).rounds) if path.exists() else 0
    sweep(path, rounds)
    run = read_run(path)
    steps = [(one.config, one.key, one.number) for one in run.rounds]
    if len(steps) != len(set(steps)) or remaining(rounds, run.rounds):
        raise AssertionError("a round is missing or there twice")
    lines = [record for record in parse(path.read_bytes(), str(path)).records if record["kind"] == "round"]
    if len(lines) != len(steps):
        raise AssertionError("a round was measured again")
    print(f"{lives} kills, {at_the_end} of {len(steps)} rounds were measured under fire")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
