"""Servers started by hand for the scripts beside this file: a process, a log, ready or not."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import httpx

_PR_SET_PDEATHSIG = 1
GONE_S = 60.0
"""How long killed processes may take to be gone: the driver unmaps what a rank held, and until then the GPU is not free."""
HIGHEST_PORT = 55_535
"""Some SGLang builds derive a second port, 10000 above the first, and refuse to start where there is none."""


def free_port() -> int:
    """A port that nobody listened on a moment ago, at most `HIGHEST_PORT`."""
    while True:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = int(probe.getsockname()[1])
        if port <= HIGHEST_PORT:
            return port


_ENDING = f"""
import ctypes, os, signal, sys
ctypes.CDLL(None).prctl({_PR_SET_PDEATHSIG}, signal.SIGTERM)
os.execvp(sys.argv[1], sys.argv[1:])
"""


def ending_with_the_script(argv: Sequence[str]) -> list[str]:
    """The same command, which gets SIGTERM when the script is killed: a server must not keep the GPU."""
    return [sys.executable, "-c", _ENDING, *argv]


@dataclass(slots=True, kw_only=True)
class Started:
    """One server: `argv` gets `--host` and `--port` added; `seconds` is set when it became ready."""

    name: str
    argv: Sequence[str]
    log: Path
    env: Mapping[str, str] = field(default_factory=dict)
    port: int = 0
    seconds: float | None = None
    process: subprocess.Popen[bytes] | None = None
    began: float = 0.0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start it in a session of its own, output to the log."""
        self.port = free_port()
        self.log.parent.mkdir(parents=True, exist_ok=True)
        self.began = time.monotonic()
        with self.log.open("wb") as sink:
            self.process = subprocess.Popen(
                ending_with_the_script([*self.argv, "--host", "127.0.0.1", "--port", str(self.port)]),
                stdout=sink,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                env={**os.environ, **self.env},
                start_new_session=True,
            )

    def poll(self) -> bool | None:
        """True: /health is 200. None: not yet. False: the process has ended."""
        assert self.process is not None
        if self.process.poll() is not None:
            return False
        with suppress(httpx.HTTPError):
            if httpx.get(f"{self.url}/health", timeout=20, trust_env=False).status_code == 200:
                self.seconds = time.monotonic() - self.began
                return True
        return None

    def stop(self, grace_s: float = 10.0) -> float:
        """SIGTERM to the parent alone, SIGKILL to its group after `grace_s`; returns the seconds until no process of the group was left.

        What is there after `GONE_S` more is named on stderr, and not waited for: other servers are to be stopped too.
        """
        began = time.monotonic()
        if self.process is None:
            return 0.0
        self.process.terminate()
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(grace_s)
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)
        until = time.monotonic() + GONE_S
        while self.process.poll() is None or _members(self.process.pid):
            if time.monotonic() > until:
                left = ", ".join(map(str, _members(self.process.pid)))
                print(
                    f"{self.name}: still there {GONE_S:g} s after SIGKILL, perhaps with GPU memory: {left}; see dmesg",
                    file=sys.stderr,
                )
                break
            time.sleep(0.05)
        return time.monotonic() - began


def _members(group: int) -> list[int]:
    """Processes of a group that have not ended; a zombie has, and its parent may take its time to ask for it."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            state, _, own = stat.read_text().rpartition(")")[2].split()[:3]
            if int(own) == group and state not in "ZX":
                found.append(int(stat.parent.name))
    return found


def wait_all(servers: Sequence[Started], timeout_s: float) -> list[Started]:
    """Wait until each is ready or has ended; returns those that are ready."""
    waiting = list(servers)
    ready: list[Started] = []
    until = time.monotonic() + timeout_s
    while waiting and time.monotonic() < until:
        for server in list(waiting):
            state = server.poll()
            if state is None:
                continue
            waiting.remove(server)
            if state:
                ready.append(server)
        time.sleep(0.25)
    return ready
