"""The scripts of benchmarks/gpu/ without a GPU: what they refuse, and that what they start does not outlive them."""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from benchmarks.gpu import arguments, launching

SCRIPTS = Path(__file__).parents[2] / "benchmarks" / "gpu"
RUN: dict[str, Any] = {"name": "a", "server": "tree", "pytest": []}


@pytest.mark.parametrize(
    ("plan", "word"),
    [
        ("no JSON", "Expecting value"),
        ({"servers": {}}, "'runs' is missing"),
        ({"servers": {"tree": {"argv": []}}, "runs": [RUN]}, "server tree has an empty argv"),
        ({"servers": {}, "runs": [RUN]}, "run a names tree, which the plan does not have"),
        ({"servers": {"tree": {"argv": ["x"]}}, "runs": [{**RUN, "after": ["b"]}]}, "run a names b"),
        ({"servers": {"tree": {"argv": ["x"]}}, "runs": [{"name": "a", "pytest": []}]}, "neither argv nor"),
        ({"servers": [], "runs": []}, "no attribute"),
    ],
)
def test_a_plan_is_read_before_a_server_starts(tmp_path: Path, plan: object, word: str) -> None:
    file = tmp_path / "plan.json"
    file.write_text(plan if isinstance(plan, str) else json.dumps(plan))
    with pytest.raises(argparse.ArgumentTypeError, match=word):
        arguments.plan(str(file))


def test_a_whole_plan_is_taken(tmp_path: Path) -> None:
    file = tmp_path / "plan.json"
    file.write_text(json.dumps({"servers": {"tree": {"argv": ["x"]}}, "runs": [RUN]}))
    assert arguments.plan(str(file))["runs"] == [RUN]


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (arguments.pair, "base"),
        (arguments.pair, "=x"),
        (arguments.cell, "60:2"),
        (arguments.cell, "60:0:8"),
        (arguments.pattern, "("),
        (arguments.signal_named, "KILL"),
        (arguments.checkpoint, "/nowhere"),
        (arguments.build, "/nowhere"),
        (arguments.faulty, "mask=/nowhere"),
        (arguments.file, "/nowhere"),
    ],
)
def test_what_is_no_such_argument_is_refused(kind: Any, text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match=text.partition("=")[2] or None):
        kind(text)


STARTS = """
import sys, time
from pathlib import Path
from launching import Started
server = Started(name="x", argv=[sys.executable, "-c", "import time; print('up', flush=True); time.sleep(600)"], log=Path(sys.argv[1]))
server.start()
print(server.process.pid, flush=True)
time.sleep(600)
"""


def test_a_server_ends_with_a_script_that_is_killed(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    with subprocess.Popen(
        [sys.executable, "-c", STARTS, str(log)], cwd=SCRIPTS, stdout=subprocess.PIPE, text=True
    ) as script:
        assert script.stdout is not None
        pid = int(script.stdout.readline())
        try:
            until = time.monotonic() + 60
            while not log.read_text() and time.monotonic() < until:
                time.sleep(0.02)
            assert Path(f"/proc/{pid}").exists()
        finally:
            os.kill(script.pid, signal.SIGKILL)
    while _lives(pid) and time.monotonic() < until:
        time.sleep(0.02)
    assert not _lives(pid)


RANK = """
import os, signal, time
if os.fork():
    time.sleep(600)
# Lives on while its parent ends at once.
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("rank", os.getpid(), flush=True)
time.sleep(600)
"""


def test_a_stop_returns_when_the_whole_group_is_gone(tmp_path: Path) -> None:
    server = launching.Started(name="x", argv=[sys.executable, "-c", RANK], log=tmp_path / "server.log")
    server.start()
    assert server.process is not None
    until = time.monotonic() + 60
    while "rank" not in server.log.read_text() and time.monotonic() < until:
        time.sleep(0.02)
    rank = int(server.log.read_text().partition("rank ")[2].split()[0])
    assert _lives(rank)
    server.stop()
    assert not _lives(rank)


def _lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False
