"""The example workflow: its rules, and its shell steps as the runner would run them, on the embedded server."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

ROOT = Path(__file__).parents[2]
WORKFLOW = ROOT / "examples" / "github" / "ddtree-gate.yml"
SHELL = ["bash", "--noprofile", "--norc", "-eo", "pipefail"]
"""How GitHub's runner starts `shell: bash`."""

SMALL = (
    "--ddtree-context=60 --ddtree-concurrency=2 --ddtree-output=16 --ddtree-rounds=2 --ddtree-min-rounds=2 "
    "--ddtree-exactness-prompts=8 --ddtree-exactness-output=16 -p no:cacheprovider"
)


def workflow() -> dict[Any, Any]:
    loaded: dict[Any, Any] = yaml.safe_load(WORKFLOW.read_text("utf-8"))
    return loaded


def job() -> dict[str, Any]:
    found: dict[str, Any] = workflow()["jobs"]["gate"]
    return found


def step(name: str) -> dict[str, Any]:
    (found,) = [one for one in job()["steps"] if one["name"] == name]
    return found


SCRIPTS = [one["name"] for one in job()["steps"] if "run" in one]


def test_strangers_and_crowds_are_kept_off_the_gpu() -> None:
    assert "head.repo.full_name == github.repository" in job()["if"]
    assert job()["concurrency"] == {"group": "ddtree-gpu", "cancel-in-progress": False}
    assert workflow()["permissions"] == {"contents": "read"}
    assert "self-hosted" in job()["runs-on"]
    assert step("Leave nothing behind")["if"] == "always()"


@pytest.mark.parametrize("name", SCRIPTS)
def test_the_scripts_can_be_read_by_bash(name: str) -> None:
    text = step(name)["run"]
    done = subprocess.run([*SHELL, "-n"], input=text, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    # An expression of GitHub's inside a script is text from outside that the shell would run.
    assert "${{" not in text


def test_pytest_takes_the_place_of_the_shell() -> None:
    for name in SCRIPTS:
        for line in step(name)["run"].splitlines():
            if "-m pytest" in line:
                assert line.strip().startswith("exec ")


def test_every_option_of_ours_exists() -> None:
    from pytest_ddtree.options import OPTIONS

    known = {option.flag for option in OPTIONS}
    for name in SCRIPTS:
        used = {word.split("=")[0] for word in step(name)["run"].split() if word.startswith("--ddtree-")}
        assert used <= known, name


class Runner:
    """Runs scripts as the steps of one job, in one workspace, with the variables that earlier steps exported."""

    def __init__(self, folder: Path) -> None:
        self.workspace = folder / "workspace"
        for side in ("base", "head"):
            (self.workspace / side / "python").mkdir(parents=True)
            (self.workspace / side / "python" / "pyproject.toml").write_text('[project]\nname = "sglang"\n')
            # The engine of this checkout is the embedded server; one without a package is refused.
            (self.workspace / side / "python" / "pytest_ddtree").symlink_to(ROOT / "pytest_ddtree")
        self.reports = self.workspace / "reports"
        self._exported = folder / "github_env"
        self._exported.touch()
        weights = ROOT / "pytest_ddtree" / "reference" / "weights"
        self._environment = {
            **{
                name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "GITHUB"))
            },
            **{name: str(value) for name, value in job()["env"].items()},
            "NIGHT": "false",
            "MODEL": str(weights / "target"),
            "DRAFT_MODEL": str(weights / "draft"),
            "SERVER": "reference",
            "SUITE": str(ROOT / "bench"),
            "VENVS": str(folder / "venvs"),
            "REPORTS": str(self.reports),
            "PYTEST_ADDOPTS": f"{SMALL} -c {ROOT / 'pyproject.toml'}",
            "CI": "true",
            "GITHUB_ACTIONS": "true",
            "GITHUB_ENV": str(self._exported),
            "GITHUB_STEP_SUMMARY": str(folder / "summary.md"),
        }
        self.summary = folder / "summary.md"

    def start(self, name: str, text: str | None = None, **changes: str) -> subprocess.Popen[str]:
        script = self.workspace.parent / "step.sh"
        script.write_text(step(name)["run"] if text is None else text)
        exported = dict(line.split("=", 1) for line in self._exported.read_text().splitlines() if "=" in line)
        return subprocess.Popen(
            [*SHELL, str(script)],
            cwd=self.workspace,
            env={**self._environment, **exported, **changes},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def run(self, name: str, **changes: str) -> tuple[int, str]:
        process = self.start(name, **changes)
        output, _ = process.communicate(timeout=400)
        return process.returncode, output

    def prepare(self) -> None:
        """The environments step, with venvs that are there already: this one stands for them."""
        done = subprocess.run(
            ["bash", "-c", 'cat head/python/pyproject.toml <(echo "$PLUGIN") | sha256sum | cut -c1-16'],
            cwd=self.workspace,
            env=self._environment,
            capture_output=True,
            text=True,
            check=True,
        )
        venv = Path(self._environment["VENVS"]) / done.stdout.strip()
        (venv / "bin").mkdir(parents=True)
        (venv / "complete").touch()
        for tool in ("python", "pytest-ddtree"):
            (venv / "bin" / tool).write_text(f'#!/bin/sh\nexec {Path(sys.executable).parent / tool} "$@"\n')
            (venv / "bin" / tool).chmod(0o755)
        old = venv.parent / "old"
        old.mkdir()
        os.utime(old, (0, 0))
        code, output = self.run("Environments")
        assert code == 0, output
        assert not old.exists()
        assert venv.exists()
        self.expected.mkdir(parents=True)

    @property
    def expected(self) -> Path:
        """Where the committed figures are."""
        return self.workspace / "head" / "ci" / "ddtree" / "expected"


def servers(runner: Runner) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        try:
            if "pytest_ddtree.reference" in " ".join(process.cmdline()) and any(
                str(runner.workspace) in file.path for file in process.open_files()
            ):
                found.append(process)
        except (psutil.Error, OSError):
            continue
    return found


@pytest.mark.slow
def test_the_gate_fails_on_what_is_missing_and_passes_once_it_is_recorded(tmp_path: Path) -> None:
    runner = Runner(tmp_path)
    runner.prepare()
    runner.expected.rmdir()
    code, output = runner.run("Gate")
    assert code == pytest.ExitCode.USAGE_ERROR, output
    assert "ci/ddtree/expected does not exist" in output
    runner.expected.mkdir()
    code, output = runner.run("Gate")
    assert code == 1, output
    assert "--ddtree-update-new" in output
    assert "::error title=ddtree%3A test_throughput" in output
    assert "other failure" in runner.summary.read_text().splitlines()[0]
    addopts = f"{SMALL} -c {ROOT / 'pyproject.toml'} --ddtree-update-new"
    code, output = runner.run("Gate", PYTEST_ADDOPTS=addopts)
    assert code == 0, output
    assert list(runner.expected.glob("*.json"))
    assert (runner.reports / "ddtree.html").read_text().startswith("<!doctype html>")
    assert runner.summary.read_text().startswith("## ddtree")
    assert json.loads((runner.reports / "report.json").read_text())["ddtree"]["cells"]
    assert "ddtree.tok_s" in (runner.reports / "junit.xml").read_text()
    code, output = runner.run("Leave nothing behind")
    assert (code, output.strip()) == (0, "nothing of ours is left behind")


def cancel(process: subprocess.Popen[str]) -> None:
    """What GitHub's runner does with the step of a job that is cancelled: SIGINT, after 7.5 s SIGTERM, after 2.5 s more SIGKILL."""
    for number, patience in ((signal.SIGINT, 7.5), (signal.SIGTERM, 2.5)):
        process.send_signal(number)
        try:
            process.wait(patience)
        except subprocess.TimeoutExpired:
            continue
        return
    process.kill()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["Gate", "Base and head in turn"])
def test_a_job_cancelled_as_github_does_it_leaves_nothing(tmp_path: Path, name: str) -> None:
    runner = Runner(tmp_path)
    runner.prepare()
    # The embedded server has no two checkouts; two arguments stand for them.
    script = (
        step(name)["run"].replace('base="$PWD/base"', "base=args:").replace('head="$PWD/head"', "head=args:")
    )
    process = runner.start(name, script)
    deadline = time.monotonic() + 120
    while not servers(runner):
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < deadline
        time.sleep(0.2)
    cancel(process)
    output, _ = process.communicate(timeout=60)
    assert process.returncode != 0, output
    code, said = runner.run("Leave nothing behind")
    assert code == 0, said
    assert servers(runner) == []
    shutil.rmtree(runner.workspace)


@pytest.mark.slow
@pytest.mark.parametrize("cancelled", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL], ids=str)
def test_a_cancelled_job_leaves_no_server(tmp_path: Path, cancelled: signal.Signals) -> None:
    runner = Runner(tmp_path)
    runner.prepare()
    process = runner.start("Gate")
    deadline = time.monotonic() + 120
    while not servers(runner):
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < deadline
        time.sleep(0.2)
    process.send_signal(cancelled)
    output, _ = process.communicate(timeout=60)
    assert process.returncode != 0, output
    code, said = runner.run("Leave nothing behind")
    assert code == 0, said
    assert servers(runner) == []
    shutil.rmtree(runner.workspace)
