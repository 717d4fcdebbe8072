"""What the tests of servers share: settings for the scripted stand-in, and a look at what is left alive."""

from __future__ import annotations

import json
import os
import shlex
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_ddtree.dialects.build import Build
from pytest_ddtree.dialects.reference import ReferenceDialect
from pytest_ddtree.servers import proc, readiness
from pytest_ddtree.servers.handle import Server
from pytest_ddtree.servers.local import LocalBackend
from pytest_ddtree.servers.pool import ServerPool
from pytest_ddtree.servers.settings import ServerSettings

FAKE = Path(__file__).parent / "fake"
STANDIN = Path(__file__).parent / "standin"
START_S = 60.0
"""Far more than any start takes, so that only a test that means it meets the deadline."""
TREE_FLAGS = [
    "--speculative-ddtree-budget",
    "--speculative-ddtree-topk",
    "--speculative-draft-window-size",
    "--speculative-dflash-block-size",
]


def settings(run_dir: Path, script: dict[str, Any] | None = None, **changes: Any) -> ServerSettings:
    """Settings for the stand-in, driven by `script` (its keys are in fake/sglang/launch_server.py)."""
    values: dict[str, Any] = {
        "kind": "sglang",
        "run_dir": run_dir,
        "model": "/models/target",
        "draft_model": "/models/draft",
        "sglang_src": FAKE,
        "env": {
            "FAKE_SGLANG": json.dumps({"flags": TREE_FLAGS, **(script or {})}),
            "TEST_RUN_DIR": str(run_dir),
        },
        "start_timeout_s": START_S,
        "stop_timeout_s": 3.0,
        "block_size": 8,
        **changes,
    }
    return ServerSettings(**values)


def pool(run_dir: Path, script: dict[str, Any] | None = None, **changes: Any) -> ServerPool:
    """A pool of stand-ins that speak the embedded server's dialect."""
    made = settings(run_dir, script, **changes)
    return ServerPool(made, backend=LocalBackend(made, ReferenceDialect(), Build()))


def alive(path: Path) -> dict[int, str]:
    """Living processes whose environment or command line names `path`, which is unique to one test."""
    needle = str(path).encode()
    found: dict[int, str] = {}
    for pid, process in proc.table().items():
        if not process.alive or pid == os.getpid():
            continue
        for part in ("environ", "cmdline"):
            try:
                data = Path(f"/proc/{pid}/{part}").read_bytes()
            except OSError:
                continue
            if needle in data:
                found[pid] = proc.command(pid)
    return found


def eventually(true: Callable[[], bool], seconds: float = 60.0) -> bool:
    """Whether it became true; the limit only bounds a hang."""
    deadline = time.monotonic() + seconds
    while not true():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def kill(server: Server) -> None:
    """End the process of a server as a crash does, and wait until its handle knows."""
    assert server.pid is not None
    os.kill(server.pid, signal.SIGKILL)
    assert eventually(lambda: not server.running)


def let_the_deadline_come(
    monkeypatch: pytest.MonkeyPatch, log: Path, words: str, left_s: float = 0.0
) -> None:
    """Let the time that a start has be over `left_s` after its log holds `words`, however long the machine takes to get there."""
    made, skipped = time.monotonic(), 0.0

    def monotonic() -> float:
        nonlocal skipped
        now = time.monotonic()
        # Its first line is the command, which holds the script.
        if not skipped and log.exists() and words in log.read_text(errors="replace").partition("\n")[2]:
            skipped = made + START_S - left_s - now
        return now + skipped

    monkeypatch.setattr(readiness, "time", SimpleNamespace(monotonic=monotonic))


def use_standins(monkeypatch: pytest.MonkeyPatch) -> None:
    """Put the stand-ins of docker, systemctl and the like before the real ones, with the interpreter that runs the tests: a `python3`
    that only looks for one (pyenv's) takes longer than they do."""
    here = (str(STANDIN), str(Path(sys.executable).parent), os.environ["PATH"])
    monkeypatch.setenv("PATH", os.pathsep.join(here))


def bare_python(folder: Path) -> str:
    """An interpreter that has the standard library alone: the one that runs the tests may well have SGLang."""
    path = folder / "bare-python"
    path.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -I -S "$@"\n')
    path.chmod(0o755)
    return str(path)
