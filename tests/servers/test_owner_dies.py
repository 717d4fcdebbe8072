"""However pytest ends, nothing of ours is alive ten seconds later."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from . import support

OWNER = Path(__file__).with_name("owner.py")
LIMIT_S = 10.0

CHILDREN = {"children": [{}, {"sigterm": "ignore"}, {"setsid": True, "sigterm": "ignore"}]}
OBEDIENT = {"children": [{}, {"setsid": True}]}
STUBBORN = {"sigterm": "ignore", **CHILDREN}


@contextmanager
def owner(run_dir: Path, script: dict[str, Any], action: str = "wait") -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, str(OWNER), str(run_dir), json.dumps(script), action],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def await_line(process: subprocess.Popen[str], word: str) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        if line.strip() == word:
            return
    pytest.fail(f"the owner ended before it said {word}")


def gone(run_dir: Path) -> bool:
    return support.eventually(lambda: not support.alive(run_dir), LIMIT_S)


@pytest.mark.parametrize("script", [{}, CHILDREN, STUBBORN], ids=["plain", "children", "stubborn"])
def test_sigkill_while_serving(tmp_path: Path, script: dict[str, Any]) -> None:
    with owner(tmp_path, script) as process:
        await_line(process, "ready")
        assert len(support.alive(tmp_path)) == 3 + len(script.get("children", ())), (
            "owner, supervisor, server, children"
        )
        process.kill()
        process.wait()
        assert gone(tmp_path), support.alive(tmp_path)


def test_sigkill_while_loading(tmp_path: Path) -> None:
    with owner(tmp_path, {"load_s": 60, **OBEDIENT}) as process:
        await_line(process, "starting")
        assert support.eventually(lambda: " is up" in _log(tmp_path))
        process.kill()
        process.wait()
        assert gone(tmp_path), support.alive(tmp_path)


@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.slow)])
def test_signal_reaches_the_supervisor_although_the_main_thread_is_busy_in_c(
    tmp_path: Path, number: int
) -> None:
    with owner(tmp_path, OBEDIENT, "ignore-signals-in-c") as process:
        await_line(process, "ready")
        process.send_signal(number)
        assert support.eventually(lambda: set(support.alive(tmp_path)) <= {process.pid}, LIMIT_S)
        assert process.poll() is None


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_reaches_every_supervisor_of_a_process(tmp_path: Path, number: int) -> None:
    """No handler tells the pools, and nobody closes them."""
    with owner(tmp_path, OBEDIENT, "several-pools") as process:
        await_line(process, "ready")
        assert len(support.alive(tmp_path)) == 1 + 3 * 4, "owner, then supervisor, server, children of each"
        process.send_signal(number)
        assert support.eventually(lambda: set(support.alive(tmp_path)) <= {process.pid}), support.alive(
            tmp_path
        )
        assert process.poll() is None


def test_close_from_a_signal_handler_during_a_start(tmp_path: Path) -> None:
    with owner(tmp_path, {"load_s": 60, **OBEDIENT}, "handler") as process:
        await_line(process, "starting")
        assert support.eventually(lambda: " is up" in _log(tmp_path))
        process.terminate()
        assert process.wait(LIMIT_S) == 143
        assert gone(tmp_path), support.alive(tmp_path)


def test_owner_that_forgets_to_close(tmp_path: Path) -> None:
    with owner(tmp_path, OBEDIENT, "exit") as process:
        assert process.wait(60) == 0
        assert gone(tmp_path), support.alive(tmp_path)


def test_a_forked_child_of_the_owner_holds_the_socket_open(tmp_path: Path) -> None:
    with owner(tmp_path, OBEDIENT, "fork") as process:
        await_line(process, "ready")
        process.kill()
        process.wait()
        try:
            assert support.eventually(
                lambda: all("owner.py" in line for line in support.alive(tmp_path).values()), LIMIT_S
            )
            assert support.alive(tmp_path), "the forked child is still there"
        finally:
            for pid in support.alive(tmp_path):
                os.kill(pid, signal.SIGKILL)


def test_owner_group_killed(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, str(OWNER), str(tmp_path), json.dumps(OBEDIENT), "wait"],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        await_line(process, "ready")
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        assert gone(tmp_path), support.alive(tmp_path)
    finally:
        process.kill()
        process.communicate()


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(4))
def test_fifty_kills_at_random_moments_leave_no_orphan(tmp_path: Path, seed: int) -> None:
    dice = random.Random(seed)
    orphans = []
    for turn in range(50):
        run_dir = tmp_path / str(turn)
        script = {
            "load_s": 0.3,
            "warm_s": 0.2,
            "sigterm": dice.choice(["obey", "ignore", 2]),
            **dice.choice([{}, CHILDREN]),
        }
        with owner(run_dir, script) as process:
            time.sleep(dice.uniform(0.0, 1.6))
            process.kill()
            process.wait()
            if not gone(run_dir):
                orphans.append((turn, support.alive(run_dir)))
    assert orphans == []


def _log(run_dir: Path) -> str:
    path = run_dir / "logs" / "b8-k4-wnone-1.log"
    return path.read_text() if path.exists() else ""
