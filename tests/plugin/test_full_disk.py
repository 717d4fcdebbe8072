"""A disk that is full ends a session in order: errors that say where and what to do, no failure, no crash of pytest."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import cast
from xml.etree import ElementTree

import pytest

from pytest_ddtree.errors import no_room
from pytest_ddtree.exactness.trace import Trace
from pytest_ddtree.grid import BASELINE
from pytest_ddtree.servers.argv import CommandLine
from pytest_ddtree.servers.backend import Order
from pytest_ddtree.servers.processes import launch_one
from pytest_ddtree.servers.supervise import Supervisor

ROOT = Path(__file__).parents[2]
SUITE = """
import pytest
from pytest_ddtree.results.model import StartInfo

def test_keeps_what_fits(ddtree_run):
    ddtree_run.results.starts.append(StartInfo("baseline", None, 1.0))
    ddtree_run.store("note", text="short")

def test_meets_the_limit(ddtree_run):
    import resource
    resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, resource.RLIM_INFINITY))
    ddtree_run.store("note", text="x" * {limit})

def test_is_not_begun(ddtree_run):
    print("went on")

def test_of_others():
    pass
"""


def run(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, suite: str
) -> tuple[int, str, dict[str, str]]:
    monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)
    pytester.makeini("[pytest]\nasyncio_default_fixture_loop_scope = session\n")
    pytester.makepyfile(suite)
    found = pytester.runpytest_subprocess("-p", "no:cacheprovider", "--junitxml=junit.xml", "-rA")
    cases = ElementTree.parse(pytester.path / "junit.xml").iter("testcase")
    return found.ret, found.stdout.str() + found.stderr.str(), {
        case.attrib["name"]: next((child.tag for child in case if child.tag in ("failure", "error")), "passed")
        for case in cases
    }  # fmt: skip


def test_errors_name_the_file_and_nothing_more_is_begun(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    code, output, outcomes = run(pytester, monkeypatch, SUITE.format(limit=60_000))
    assert outcomes == {
        "test_keeps_what_fits": "passed",
        "test_meets_the_limit": "error",
        "test_is_not_begun": "error",
        "test_of_others": "passed",
    }
    assert code == pytest.ExitCode.TESTS_FAILED
    assert "Traceback" not in output
    assert "went on" not in output
    assert output.count("server starts: 1") == 1
    warning = next(line for line in output.splitlines() if line.startswith("warning: "))
    assert "results.jsonl: cannot be written (File too large)" in warning
    assert "--ddtree-resume" in warning
    (file,) = pytester.path.glob(".ddtree/*/results.jsonl")
    assert [json.loads(line)["kind"] for line in file.read_text().splitlines()][-2:] == ["note", "timing"]


def test_what_is_lost_at_the_end_alone_is_no_success(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    suite = """
    import resource
    from pytest_ddtree.results.model import StartInfo

    def test_leaves_no_room(ddtree_run):
        ddtree_run.results.starts.append(StartInfo("baseline", None, 1.0))
        ddtree_run.store("note", text="x" * 60_000)
        resource.setrlimit(resource.RLIMIT_FSIZE, (60_000, resource.RLIM_INFINITY))
    """
    code, output, outcomes = run(pytester, monkeypatch, suite)
    assert outcomes == {"test_leaves_no_room": "passed"}
    assert code == pytest.ExitCode.TESTS_FAILED
    assert "INTERNALERROR" not in output
    assert "results.jsonl: cannot be written (File too large)" in output


def _head_of_a_log(path: Path) -> None:
    order = Order(
        config=BASELINE,
        variant="matched",
        number=1,
        launch="baseline-1",
        log_path=path,
        deadline=1.0,
        budget_s=1.0,
        progress=print,
        closing=lambda: False,
    )
    # It is not come to: a server whose log cannot be begun is not started.
    nobody = cast(Supervisor, None)
    launch_one(nobody, order, order.launch, CommandLine(("server",), {}, path.parent))


@pytest.mark.parametrize("write", [_head_of_a_log, Trace(()).save], ids=["log", "trace"])
def test_a_file_that_is_open_already_is_named_too(write: Callable[[Path], None]) -> None:
    """An open file does not say its name when it cannot be written to; "a file" helps nobody to find the disk that is full."""
    with pytest.raises(OSError, match="/dev/full") as caught:
        write(Path("/dev/full"))
    assert str(no_room(caught.value)).startswith("/dev/full: cannot be written (No space left on device)")


@pytest.mark.slow
@pytest.mark.parametrize(("size", "measured"), [("24k", True), ("4k", False)])
def test_a_small_file_system_fills_up_while_servers_are_measured(
    tmp_path: Path, size: str, measured: bool
) -> None:
    """24 KiB hold the first cells of the baseline and no more; what they measured is still shown. 4 KiB do not hold the first start."""
    if shutil.which("unshare") is None or subprocess.run(["unshare", "-rm", "true"], check=False).returncode:
        pytest.skip("this machine lets nobody mount a file system of his own")
    script = (
        f"mount -t tmpfs -o size={size} none {tmp_path} && exec {sys.executable} -m pytest bench -p no:cacheprovider -m bench "
        f"--ddtree-budget 8 --ddtree-profile smoke --ddtree-client-lag 10 --ddtree-results={tmp_path}"
    )
    done = subprocess.run(
        ["unshare", "-rm", "sh", "-c", script],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == pytest.ExitCode.TESTS_FAILED, done.stdout
    assert "Traceback" not in done.stdout + done.stderr
    assert " failed" not in done.stdout.splitlines()[-1]
    assert ("baseline: code, temperature 0" in done.stdout) == measured
    assert "a file (for temporary files" not in done.stdout
    assert "No space left on device" in done.stdout
