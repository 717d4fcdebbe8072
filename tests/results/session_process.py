"""A session of the suites as a process of its own, to be waited for or killed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def start_session(results: Path, *arguments: str) -> subprocess.Popen[str]:
    """Start pytest with these arguments; its results go under `results`, its output to the pipe."""
    return subprocess.Popen(
        [sys.executable, "-m", "pytest", *arguments, f"--ddtree-results={results}"],
        cwd=ROOT,
        env={
            **{name: value for name, value in os.environ.items() if name != "PYTEST_ADDOPTS"},
            "PYTHONPATH": str(Path(__file__).parent),  # plugins that a test gives with -p
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
