"""The same with a real pytest, the plugin and the embedded server: every way to end it, at random moments."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from . import support

TEST = """
import pytest

@pytest.mark.bench
def test_it(ddtree_server):
    print("ready", flush=True)
    import time
    time.sleep(600)
"""


@contextmanager
def session(folder: Path, *, wait: bool) -> Iterator[subprocess.Popen[str]]:
    """A pytest run that owns an embedded server; with `wait` once the server is up."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "test_it.py").write_text(TEST)
    (folder / "pytest.ini").write_text("[pytest]\nasyncio_default_fixture_loop_scope = session\n")
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-s",
        "-q",
        "-p",
        "no:cacheprovider",
        "-m",
        "bench",
        "--ddtree-budget",
        "8",
        str(folder),
    ]
    env = {**os.environ, "TEST_RUN_DIR": str(folder)}
    process = subprocess.Popen(
        command, cwd=folder, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert process.stdout is not None
    try:
        if wait:
            seen = []
            for line in process.stdout:
                seen.append(line)
                if line.strip().lstrip(".") == "ready":
                    break
            else:
                pytest.fail("".join(seen))
        yield process
    finally:
        process.kill()
        process.communicate()


def gone(folder: Path) -> bool:
    return support.eventually(lambda: not support.alive(folder), 10.0)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 2), (signal.SIGKILL, -9)]
)
def test_signals(tmp_path: Path, number: signal.Signals, code: int) -> None:
    with session(tmp_path, wait=True) as process:
        assert len(support.alive(tmp_path)) >= 3, "pytest, supervisor, server"
        process.send_signal(number)
        out, _ = process.communicate(timeout=120)
        assert process.returncode == code, out
        assert gone(tmp_path), support.alive(tmp_path)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(4))
def test_fifty_kills_at_random_moments(tmp_path: Path, seed: int) -> None:
    dice = random.Random(seed)
    orphans = []
    for turn in range(50):
        folder = tmp_path / str(turn)
        with session(folder, wait=False) as process:
            time.sleep(dice.uniform(0.0, 4.0))
            process.kill()
            process.wait()
            if not gone(folder):
                orphans.append((turn, support.alive(folder)))
    assert orphans == []
