"""The installed plugin has its suites and problems with it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from suite import ROOT

pytestmark = [pytest.mark.slow]


def test_the_suites_run_from_a_wheel(tmp_path: Path) -> None:
    """Built with the development environment's own back end, installed beside it, collected in an empty folder."""
    site = tmp_path / "site"
    build = [sys.executable, "-m", "pip", "install", "--no-deps", "--no-build-isolation", "--quiet"]
    subprocess.run([*build, "--target", str(site), str(ROOT)], check=True, timeout=300)
    empty = tmp_path / "empty"
    empty.mkdir()
    environment = {**os.environ, "PYTHONPATH": str(site)}
    command = [sys.executable, "-m", "pytest", "--pyargs", "pytest_ddtree.suites", "--collect-only", "-q"]
    done = subprocess.run(
        [*command, "-m", "bench or coding"],
        cwd=empty,
        env=environment,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "test_throughput[b8-k4-wnone-ctx60-c1]" in done.stdout
    assert "test_problem[b8-k4-wnone-fold_ends]" in done.stdout
