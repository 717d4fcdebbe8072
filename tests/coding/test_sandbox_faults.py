"""What goes wrong around a run: it costs that run, says what happened, and leaves nothing behind."""

from __future__ import annotations

import os
import resource
import signal
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from sandbox_processes import children

from pytest_ddtree.coding.checking import ProblemFaultError, check
from pytest_ddtree.coding.problems import Case, Problem
from pytest_ddtree.coding.sandbox import (
    Done,
    Ended,
    Limits,
    ProgramResult,
    Sandbox,
    SandboxError,
    SandboxOffWarning,
    SandboxUnavailableError,
    Value,
)
from pytest_ddtree.coding.sandbox.sandbox import call

LIMITS = Limits(cpu_s=30, wall_s=120, memory_bytes=128 << 20)
ONE = "def f(*a): return 1"


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    with Sandbox(LIMITS, workers=1) as opened:
        yield opened


def test_a_faulty_problem_costs_no_process(sandbox: Sandbox) -> None:
    before = sandbox.pids
    cases = (Case(args=(object(),), expect=1),)
    problem = Problem(task_id="t", mode="function", entry_point="f", prompt="", question="", cases=cases)
    for _ in range(3):
        with pytest.raises(ProblemFaultError):
            check(problem, ONE, sandbox)
    assert sandbox.pids == before


def test_a_process_that_was_interrupted_at_work_is_not_used_again(sandbox: Sandbox) -> None:
    before = sandbox.pids
    with pytest.raises(KeyboardInterrupt), sandbox.session(ONE):
        raise KeyboardInterrupt
    assert sandbox.pids == []
    assert not Path(f"/proc/{before[0]}").exists()
    assert isinstance(sandbox.run_function(ONE, "f", [((), {})])[0], Value)


def test_an_interrupt_while_it_opens_leaves_no_process() -> None:
    before = set(children(os.getpid()))

    def interrupt() -> None:
        while set(children(os.getpid())) <= before:
            time.sleep(0.001)
        os.kill(os.getpid(), signal.SIGINT)

    watcher = threading.Thread(target=interrupt)
    watcher.start()
    with pytest.raises(KeyboardInterrupt):
        Sandbox(LIMITS, workers=1).open()
    watcher.join()
    assert set(children(os.getpid())) <= before


def test_without_a_place_for_its_files_the_sandbox_is_missing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "gone"))
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(SandboxUnavailableError, match=r"no place for its files: .*gone.*TMPDIR"):
        Sandbox(LIMITS, workers=1).open()
    assert len(os.listdir("/proc/self/fd")) == before


def test_descriptors_that_run_out_are_no_verdict_and_none_is_lost(sandbox: Sandbox) -> None:
    assert isinstance(sandbox.run_program("print(1)", ""), ProgramResult)
    before = set(os.listdir("/proc/self/fd"))
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    # Numbers below the limit that are free are held, so that each turn has one descriptor more to give than the last.
    top = max(map(int, before)) + 16
    held = [os.open("/dev/null", os.O_RDONLY) for _ in range(top - len(before))]
    refused = worked = 0
    try:
        while not worked:
            resource.setrlimit(resource.RLIMIT_NOFILE, (top, hard))
            try:
                worked = isinstance(sandbox.run_program("print(1)", ""), ProgramResult)
            except SandboxError:
                refused += 1
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            top += 1
    finally:
        for fd in held:
            os.close(fd)
    assert refused >= 5
    assert set(os.listdir("/proc/self/fd")) == before


HALF_CLOSED = """
import _socket, signal, time
channel = _socket.socket(fileno=3)
def say_no_more(number, frame):
    channel.shutdown(1)
    time.sleep(600)
signal.signal(signal.SIGALRM, say_no_more)
def f(): signal.setitimer(signal.ITIMER_REAL, 0.01)
def g(x): return 1
"""


def test_a_solution_that_can_no_longer_answer_is_not_waited_for(sandbox: Sandbox) -> None:
    """What it is sent fills its channel, which it neither reads nor closes."""
    with sandbox.session(HALF_CLOSED) as (run, loaded):
        assert loaded == Done()
        call(run, "f", (), {})
        assert run._channel._read.poll(60_000), "it has said that it will say no more"
        answer = call(run, "g", ("x" * (8 << 20),), {})
    assert answer == Ended("crash", "the process closed its channel without an answer")


def test_a_program_that_is_killed_from_outside_says_so(sandbox: Sandbox) -> None:
    (zygote,) = sandbox.pids
    with ThreadPoolExecutor(1) as pool:
        coming = pool.submit(sandbox.run_program, "while True: pass", "")
        while not (found := children(zygote)):
            time.sleep(0.01)
        # A tenth of a second of CPU time is more than it takes to start.
        while int(Path(f"/proc/{found[0]}/stat").read_text().rsplit(")", 1)[1].split()[11]) < 10:
            time.sleep(0.01)
        os.kill(found[0], signal.SIGKILL)
        ended = coming.result()
    assert ended == Ended(
        "crash", "the process was ended by SIGKILL, which the kernel sends where memory runs out"
    )


def test_a_signal_without_a_name_is_a_crash_like_any_other() -> None:
    with pytest.warns(SandboxOffWarning), Sandbox(LIMITS, mode="off", workers=1) as sandbox:
        found = sandbox.run_function("import os\ndef f(): os.kill(os.getpid(), 40)", "f", [((), {})])
    assert found == [Ended("crash", "the process was ended by signal 40")]


def test_a_sandbox_that_is_closed_ends_the_runs_of_other_threads() -> None:
    running = threading.Event()
    sandbox = Sandbox(LIMITS, workers=2).open()

    def work() -> None:
        with sandbox.session("import time\ndef f(s): time.sleep(s)") as (run, _):
            running.set()
            call(run, "f", (60,), {})

    with ThreadPoolExecutor(1) as pool:
        job = pool.submit(work)
        assert running.wait(60)
        sandbox.close()
        with pytest.raises(SandboxError, match=r"died|closed|not open"):
            job.result()
    assert sandbox.pids == []
