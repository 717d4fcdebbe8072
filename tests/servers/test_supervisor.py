"""The supervisor by itself: what it knows of the processes that it started, and what is told of them when it is interrupted."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from pytest_ddtree.servers import proc, reap, registry, stale
from pytest_ddtree.servers.argv import environment
from pytest_ddtree.servers.errors import PoolClosed
from pytest_ddtree.servers.probe import probe
from pytest_ddtree.servers.supervise import Supervisor

from . import support

RANKS = """
import os, subprocess, sys, time
rank = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
print("rank", rank.pid, "up", flush=True)
time.sleep(600)
"""


@pytest.fixture
def supervisor(tmp_path: Path) -> Iterator[Supervisor]:
    made = Supervisor(tmp_path)
    try:
        yield made
    finally:
        made.close()


def ranks(supervisor: Supervisor, folder: Path) -> tuple[int, int]:
    """Start a server with a rank in a session of its own; the ids of both."""
    log = folder / "ranks.log"
    main = supervisor.start("b8-1", [sys.executable, "-c", RANKS], env=os.environ, cwd=folder, log=log)
    assert support.eventually(lambda: " up" in log.read_text())
    return main, int(log.read_text().split()[1])


def test_a_rank_that_died_with_its_server_is_remembered(supervisor: Supervisor, tmp_path: Path) -> None:
    """A scheduler that fails takes all of SGLang's processes with it, and the GPU's memory is the rank's."""
    main, rank = ranks(supervisor, tmp_path)
    # It looks every few seconds, and after each request.
    for name in ("nobody", "nobody either"):
        supervisor.stop(name, 1.0)
    for pid in (rank, main):
        os.kill(pid, signal.SIGKILL)
    assert supervisor.wait_exit("b8-1", 60.0) == -signal.SIGKILL
    assert {main, rank} <= set(supervisor.stop("b8-1", 1.0).pids)


def test_what_a_server_leaves_is_told_to_end(supervisor: Supervisor, tmp_path: Path) -> None:
    ranks(supervisor, tmp_path)
    stopped = supervisor.stop("b8-1", 60.0)
    assert stopped.code == -signal.SIGTERM
    assert (stopped.killed, stopped.left) == ((), ())


def test_what_a_lost_supervisor_leaves_is_told_by_its_whole_name(
    supervisor: Supervisor, tmp_path: Path
) -> None:
    both = ranks(supervisor, tmp_path)
    assert supervisor._sweep("b8").killed == ()
    assert sorted(supervisor._sweep("b8-1").killed) == sorted(both)


def test_a_probe_that_is_broken_off_says_nothing_of_the_build(supervisor: Supervisor, tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\nexec sleep 600\n")
    python.chmod(0o755)
    settings = support.settings(tmp_path, python=str(python), sglang_src=None)
    timer = threading.Timer(0.3, supervisor.alarm)
    timer.start()
    with pytest.raises(PoolClosed):
        probe(settings, supervisor, environment(settings))
    timer.join()


OWNER = f"""
import sys, time
sys.path[:0] = {sys.path!r}
from pathlib import Path
from pytest_ddtree.servers.supervise import Supervisor
supervisor = Supervisor(Path(sys.argv[1]))
print(supervisor.pid, flush=True)
time.sleep(600)
"""


def test_a_supervisor_that_hangs_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own_state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It was reported as removed, its record was gone, and what it should have stopped by command ran on."""
    monkeypatch.setattr(stale, "_PATIENCE_S", 0.3)
    monkeypatch.setattr(stale, "_HELPERS_S", 0.3)
    owner = subprocess.Popen([sys.executable, "-c", OWNER, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    pid = int(owner.stdout.readline())
    try:
        assert support.eventually(lambda: bool(registry.records()))
        os.kill(pid, signal.SIGSTOP)
        (record,) = registry.records()
        flag = own_state / "stopped"
        record.launches["b8-1"] = {"log": "x", "stop_commands": [["touch", str(flag)]]}
        record.save()
        owner.kill()
        owner.wait()
        assert reap.run([]) == 0
        assert flag.exists()
        assert support.eventually(lambda: (now := proc.read(pid)) is None or not now.alive)
        assert "removed" in capsys.readouterr().out
    finally:
        owner.kill()
        owner.wait()
        owner.stdout.close()
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
