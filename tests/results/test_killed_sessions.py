"""A real sweep on the embedded server, killed with SIGKILL at random moments and resumed until it is complete."""

from __future__ import annotations

import random
import signal
import subprocess
import time
from pathlib import Path

import pytest
from session_process import start_session

from pytest_ddtree.report.terminal import lines
from pytest_ddtree.results.model import Results
from pytest_ddtree.results.runs import StoredRun, cells_of, find_runs, read_run
from pytest_ddtree.results.store import parse

CONFIGS = ("baseline", "chain-wnone", "b4-k4-wnone")
SWEEP = (
    *("-m", "bench", "-k", "throughput or exact_against or effective_config", "-p", "no:cacheprovider"),
    *("--ddtree-budget=chain,4", "--ddtree-context=60", "--ddtree-concurrency=1,2", "--ddtree-output=16"),
    *("--ddtree-exactness-prompts=4", "--ddtree-exactness-output=8"),
    *("--ddtree-rounds=4", "--ddtree-min-rounds=4"),
)
ROUNDS = 4 * 2 * len(CONFIGS)


def start(results: Path, *arguments: str) -> subprocess.Popen[str]:
    return start_session(results, *SWEEP, *arguments)


def finish(results: Path, *arguments: str) -> str:
    process = start(results, *arguments)
    output, _ = process.communicate(timeout=500)
    assert process.returncode == 0, output
    return output


def resuming(results: Path) -> tuple[str, ...]:
    return ("--ddtree-resume=last",) if find_runs(results) else ()


def stored_bytes(results: Path) -> bytes:
    runs = find_runs(results)
    return runs[0].read_bytes() if runs else b""


def uninterrupted(run: StoredRun) -> Results:
    """The same data as a run that nobody killed has it: one config after the other, every round and every verdict once."""
    place = {config: number for number, config in enumerate(CONFIGS)}
    rounds = sorted(run.rounds, key=lambda one: (place[one.config], one.key, one.number))
    verdicts = {config: run.results.verdicts[config][-1:] for config in CONFIGS[1:]}
    cells = {name: run.results.cells[name] for name in cells_of(rounds)}
    return Results(cells=cells, verdicts=verdicts)


def tables(text: str) -> list[str]:
    """What a session printed between its heading and the list of starts."""
    after = text.split("= ddtree =", 1)[1].splitlines()[1:]
    end = next(number for number, line in enumerate(after) if line.startswith("server starts:"))
    return [line for line in after[:end] if line]


@pytest.mark.parametrize(
    "kills",
    [
        pytest.param(4, marks=pytest.mark.slow),
        pytest.param(200, marks=pytest.mark.soak),
    ],
)
def test_a_sweep_killed_at_random_moments_ends_with_the_tables_of_one_that_was_not(
    tmp_path: Path, kills: int
) -> None:
    generator = random.Random(kills)
    began = time.monotonic()
    finish(tmp_path / "calm")
    life = time.monotonic() - began
    done = 0
    while done < kills:
        results = tmp_path / f"from-{done}"
        while done < kills and len(stored_rounds(results)) < ROUNDS:
            before = stored_bytes(results)
            process = start(results, *resuming(results))
            time.sleep(generator.uniform(0, life))
            process.send_signal(signal.SIGKILL)
            process.communicate(timeout=60)
            done += 1
            whole = before[: before.rfind(b"\n") + 1]
            assert stored_bytes(results).startswith(whole), f"kill {done}: something that was written is gone"
        before = stored_rounds(results)
        output = finish(results, *resuming(results))
        (path,) = find_runs(results)
        after = read_run(path)
        assert after.rounds[: len(before)] == before
        names = [(one.config, one.key, one.number) for one in after.rounds]
        assert len(set(names)) == len(names) == ROUNDS
        lines_of_rounds = [
            record for record in parse(path.read_bytes(), str(path)).records if record["kind"] == "round"
        ]
        assert len(lines_of_rounds) == ROUNDS, "a round was measured twice"
        assert tables(output) == [line for line in lines(uninterrupted(after)) if line]


def stored_rounds(results: Path) -> list[object]:
    """The rounds on the disk."""
    return [one for path in find_runs(results) for one in read_run(path).rounds]
