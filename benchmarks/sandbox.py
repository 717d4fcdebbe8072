"""How many program runs a minute the sandbox makes: `python benchmarks/sandbox.py [--seconds S] [--workers N]`.

Each figure is the best of three rounds, with the load average beside it: other work on the machine shows there.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median

from pytest_ddtree.coding.sandbox import ProgramResult, Sandbox, Value

SOURCE = """
def count_words(text):
    counts = {}
    for word in text.lower().split():
        counts[word] = counts.get(word, 0) + 1
    return sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))
"""
PROGRAM = """
import sys
numbers = list(map(int, sys.stdin.read().split()))
print(sum(numbers), max(numbers))
"""
TEST = "def check(candidate):\n" + "".join(
    f"    assert candidate('a b a' + ' c' * {n})[0][0] in 'ac'\n" for n in range(8)
)
ROUNDS = 3


def one_call(sandbox: Sandbox) -> None:
    (answer,) = sandbox.run_function(SOURCE, "count_words", [(("a b a",), {})])
    assert isinstance(answer, Value), answer


def twenty_calls(sandbox: Sandbox) -> None:
    calls = [((f"a b a {'c ' * n}",), {}) for n in range(20)]
    answers = sandbox.run_function(SOURCE, "count_words", calls)
    assert all(isinstance(answer, Value) for answer in answers), answers


def program(sandbox: Sandbox) -> None:
    result = sandbox.run_program(PROGRAM, "1 2 3\n4 5 6\n")
    assert isinstance(result, ProgramResult), result
    assert result.stdout == b"21 6\n", result


def candidate(sandbox: Sandbox) -> None:
    verdict = sandbox.examine(SOURCE, "count_words", prelude="", test=TEST)
    assert getattr(verdict, "verdict", None) == "passed", verdict


KINDS: dict[str, Callable[[Sandbox], None]] = {
    "function, 1 input": one_call,
    "function, 20 inputs": twenty_calls,
    "stdin program": program,
    "check(candidate), 8 calls": candidate,
}


def cpu_s(sandbox: Sandbox) -> float:
    """CPU seconds of this process, the zygotes and their ended children so far."""
    ticks = 0
    for pid in sandbox.pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        ticks += sum(map(int, fields[11:15]))
    return time.process_time() + ticks / os.sysconf("SC_CLK_TCK")


def rate(sandbox: Sandbox, work: Callable[[Sandbox], None], seconds: float) -> tuple[float, float]:
    """Runs a minute with as many threads as workers, and CPU milliseconds a run."""
    end = time.monotonic() + seconds

    def worker() -> int:
        done = 0
        while time.monotonic() < end:
            work(sandbox)
            done += 1
        return done

    began, cpu_began = time.monotonic(), cpu_s(sandbox)
    with ThreadPoolExecutor(sandbox.workers) as pool:
        jobs = [pool.submit(worker) for _ in range(sandbox.workers)]
        done = sum(job.result() for job in jobs)
    return done / (time.monotonic() - began) * 60, (cpu_s(sandbox) - cpu_began) / done * 1000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=4.0, help="length of a round")
    parser.add_argument("--workers", type=int, default=None, help="default: usable CPUs")
    parser.add_argument("--without", nargs="*", default=[], help="layers to leave out")
    options = parser.parse_args()
    began = time.monotonic()
    with Sandbox(workers=options.workers, without=tuple(options.without)) as sandbox:
        print(f"opened in {time.monotonic() - began:.2f} s; {sandbox.capabilities.describe()}")
        print(f"{sandbox.workers} workers on {len(os.sched_getaffinity(0))} usable CPUs")
        for name, work in KINDS.items():
            work(sandbox)
            rates, costs = zip(*(rate(sandbox, work, options.seconds) for _ in range(ROUNDS)), strict=True)
            print(
                f"{name:27} best {max(rates):6.0f} runs/min, median {median(rates):6.0f}, "
                f"{median(costs):5.2f} ms CPU a run, {ROUNDS} rounds, load {os.getloadavg()[0]:.1f}"
            )


if __name__ == "__main__":
    main()
