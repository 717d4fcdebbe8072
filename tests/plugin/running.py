"""Embedded servers that a test starts by hand, as somebody else's."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from pathlib import Path

MODEL = Path(__file__).parents[2] / "pytest_ddtree" / "reference" / "weights" / "target"


class Running:
    """An embedded server started by hand."""

    def __init__(self, log: Path, *arguments: str) -> None:
        with log.open("w") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "pytest_ddtree.reference", "--port", "0", *arguments],
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        try:
            self.url = self._wait(log)
        except BaseException:
            self.stop()
            raise

    def _wait(self, log: Path) -> str:
        deadline = time.monotonic() + 180
        while "ready to roll" not in log.read_text():
            assert self.process.poll() is None, log.read_text()
            assert time.monotonic() < deadline
            time.sleep(0.1)
        found = re.search(r"http://127\.0\.0\.1:\d+", log.read_text())
        assert found is not None
        return found[0]

    def stop(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(60)
        finally:
            self.process.kill()
            self.process.wait()


TREE = (
    "--speculative-algorithm",
    "DDTREE",
    "--speculative-ddtree-budget",
    "8",
    "--speculative-ddtree-topk",
    "4",
)
DRAFT = ("--speculative-draft-model-path", str(MODEL.parent / "draft"))
