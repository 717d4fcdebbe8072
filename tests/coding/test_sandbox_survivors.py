"""Nothing of the sandbox outlives the process that opened it, however that ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

# Prints the pids of the zygotes and of children that loop, sleep and wait for a request, then hangs.
OWNER = """
import sys, threading, time
from pytest_ddtree.coding.sandbox import Limits, Sandbox
from pytest_ddtree.coding.sandbox.inner.codec import decode
from pytest_ddtree.coding.sandbox.sandbox import call

SOURCE = '''
import os, signal, time
for number in range(1, 65):
    try:
        signal.signal(number, signal.SIG_IGN)
    except (OSError, ValueError):
        pass
def pid(): return os.getpid()
def loop():
    while True: pass
def sleep(): time.sleep(3600)
'''
sandbox = Sandbox(Limits(cpu_s=600, wall_s=600), workers=3).open()
lock = threading.Lock()
said = threading.Semaphore(0)
def work(what):
    with sandbox.session(SOURCE) as (run, loaded):
        child = decode(call(run, "pid", (), {}).encoded)
        with lock:
            print("child", child, flush=True)
        said.release()
        if what == "idle":
            time.sleep(3600)
        call(run, what, (), {})
threads = [threading.Thread(target=work, args=(what,), daemon=True) for what in ("loop", "sleep", "idle")]
for thread in threads:
    thread.start()
for _ in threads:
    said.acquire()
# What they were told next reaches them meanwhile; where it does not, they wait, which one of them does anyway.
time.sleep(0.5)
for pid in sandbox.pids:
    print("zygote", pid, flush=True)
print("ready", flush=True)
time.sleep(3600)
"""


def gone(pid: int) -> bool:
    """Whether the process has ended; a zombie that its new parent has yet to reap has."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return True
    return state in "ZX"


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_nothing_survives_the_owner(how: signal.Signals, tmp_path: Path) -> None:
    project = Path(__file__).parents[2]
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER], cwd=project, env=environment, stdout=subprocess.PIPE, text=True
    )
    pids: dict[str, list[int]] = {"child": [], "zygote": []}
    try:
        assert owner.stdout is not None
        for line in owner.stdout:
            if line == "ready\n":
                break
            kind, pid = line.split()
            pids[kind].append(int(pid))
        assert {kind: len(found) for kind, found in pids.items()} == {"child": 3, "zygote": 3}
        everyone = pids["child"] + pids["zygote"]
        assert not any(map(gone, everyone))
        assert any(tmp_path.iterdir())
        owner.send_signal(how)
        owner.wait(60)
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and not (all(map(gone, everyone)) and not any(tmp_path.iterdir())):
            time.sleep(0.02)
        assert [pid for pid in everyone if not gone(pid)] == []
        assert list(tmp_path.iterdir()) == [], "working folders are gone too"
    finally:
        owner.kill()
        owner.wait()
        if owner.stdout is not None:
            owner.stdout.close()
