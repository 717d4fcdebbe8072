"""Runs the project's own suites in a process of their own, on the embedded server, as a user would."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

import psutil

ROOT = Path(__file__).parents[2]

SMALL = (
    *("--ddtree-context", "60", "--ddtree-concurrency", "2", "--ddtree-output", "16", "--ddtree-rounds", "2"),
    *("--ddtree-exactness-prompts", "8", "--ddtree-exactness-output", "32"),
    # The machine that runs these tests runs others beside them; how fast its client is, is not what they are about.
    *("--ddtree-client-lag", "10"),
)
"""The smallest matrix that still has every kind of test."""


@dataclass(frozen=True)
class Outcome:
    """How a run ended: exit code, what it printed, and each test's outcome by its id."""

    code: int
    output: str
    tests: dict[str, str]
    messages: dict[str, str]


def command(*args: str, results: Path) -> list[str]:
    """The command line of a run; reports go under `results`."""
    return [
        *(sys.executable, "-m", "pytest", "-p", "no:cacheprovider"),
        *(f"--ddtree-results={results}", f"--junitxml={results}/junit.xml"),
        *args,
    ]


def environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name != "PYTEST_ADDOPTS"}


def run(*args: str, results: Path) -> Outcome:
    """Run and wait."""
    results.mkdir(parents=True, exist_ok=True)
    done = subprocess.run(
        command(*args, results=results),
        cwd=ROOT,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=1200,
        check=False,
    )
    tests, messages = read_junit(results / "junit.xml")
    return Outcome(done.returncode, done.stdout + done.stderr, tests, messages)


def read_junit(path: Path) -> tuple[dict[str, str], dict[str, str]]:
    """Outcome and message of each test case of a JUnit file."""
    tests: dict[str, str] = {}
    messages: dict[str, str] = {}
    if not path.exists():
        return tests, messages
    for case in ElementTree.parse(path).iter("testcase"):
        name = case.attrib["name"]
        found = [child for child in case if child.tag in ("failure", "error", "skipped")]
        tests[name] = found[0].tag if found else "passed"
        messages[name] = "\n".join(
            f"{child.attrib.get('message', '')}\n{child.text or ''}" for child in found
        )
    return tests, messages


def servers_of(results: Path) -> list[psutil.Process]:
    """Processes that still run for a session that wrote to `results`."""
    alive = []
    for process in psutil.process_iter():
        try:
            line = " ".join(process.cmdline())
            opened = any(str(results) in file.path for file in process.open_files())
        except (psutil.Error, OSError):
            continue
        if "pytest_ddtree" in line and (str(results) in line or opened):
            alive.append(process)
    return alive
