"""A server process for tests, on a port of the system's choosing."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

START_S = 300.0


class ServerProcess:
    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.lines: list[str] = []
        self.port = 0
        self._ready, self._bound = threading.Event(), threading.Event()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.append(line.rstrip("\n"))
            if found := re.search(r"Uvicorn running on http://127\.0\.0\.1:(\d+)", line):
                self.port = int(found[1])
                self._bound.set()
            if "fired up and ready to roll" in line:
                self._ready.set()
        self._bound.set()
        self._ready.set()

    def wait_bound(self) -> None:
        assert self._bound.wait(START_S)

    def wait_ready(self) -> None:
        assert self._ready.wait(START_S)
        assert self.process.poll() is None, "\n".join(self.lines)

    @property
    def log(self) -> str:
        return "\n".join(self.lines)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def client(self) -> httpx.Client:
        return httpx.Client(base_url=self.url, timeout=600, trust_env=False, verify=False)


@contextmanager
def server(weights: tuple[Path, Path], *arguments: str, speculative: bool = True) -> Iterator[ServerProcess]:
    command = [
        sys.executable,
        "-m",
        "pytest_ddtree.reference",
        "--port",
        "0",
        "--model-path",
        str(weights[0]),
    ]
    if speculative:
        command += ["--speculative-draft-model-path", str(weights[1]), "--speculative-algorithm", "DDTREE"]
    process = subprocess.Popen([*command, *arguments], stderr=subprocess.PIPE, text=True)
    running = ServerProcess(process)
    try:
        running.wait_ready()
        yield running
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        running._reader.join(5)
        assert process.stderr is not None
        process.stderr.close()
