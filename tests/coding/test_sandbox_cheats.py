"""Every cheat, as this user, as a plain user, and on systems that lack layers."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from sandbox_cheats import CHEATS, Cheat

HERE = Path(__file__).parent
PROJECT = HERE.parents[1]
NOBODY = 65534
BY_NAME = {cheat.name: cheat for cheat in CHEATS}
BRIEF = [cheat.name for cheat in CHEATS if not cheat.waits]
WAITING = [cheat.name for cheat in CHEATS if cheat.waits]


def test_cheats_have_names_of_their_own() -> None:
    assert len(BY_NAME) == len(CHEATS) >= 100


@cache
def battery(user: str, *options: str) -> dict[str, Any]:
    """The battery in a process of its own; `user` is "self" or "plain"."""
    interpreter, identity = sys.executable, {}
    if user == "plain" and os.getuid() == 0:
        interpreter = plain_interpreter()
        identity = {"user": NOBODY, "group": NOBODY, "extra_groups": []}
    done = subprocess.run(
        [interpreter, "-B", str(HERE / "sandbox_battery.py"), *options],
        env={"PYTHONPATH": str(PROJECT), "PATH": "/usr/bin:/bin"},
        cwd="/",
        capture_output=True,
        text=True,
        check=False,
        **identity,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def plain_interpreter() -> str:
    """A Python of this version or later that a plain user can run; skips when there is none."""
    probe = "import sys, pytest_ddtree.coding.checking; sys.exit(sys.version_info < (3, 11))"
    for name in (os.path.realpath(sys.executable), "python3", "python3.11", "python3.12", "python3.13"):
        found = shutil.which(name, path="/usr/bin:/usr/local/bin:/bin")
        if found is None:
            continue
        command = [found, "-B", "-c", probe]
        environment = {"PYTHONPATH": str(PROJECT)}
        try:
            done = subprocess.run(
                command, env=environment, cwd="/", check=False, capture_output=True,
                user=NOBODY, group=NOBODY, extra_groups=[],
            )  # fmt: skip
        except OSError:
            continue
        if done.returncode == 0:
            return found
    pytest.skip("running as root, and a plain user can reach no Python 3.11 with this project")


def judge(cheat: Cheat, found: dict[str, Any]) -> None:
    verdict = found["verdicts"][cheat.name]
    assert verdict["status"] in cheat.may, verdict
    if cheat.got is not None:
        assert verdict["got"] == cheat.got, verdict


@pytest.mark.parametrize("name", BRIEF)
def test_cheat_is_rejected(name: str) -> None:
    judge(BY_NAME[name], battery("self", "--brief"))


@pytest.mark.parametrize("name", BRIEF)
def test_cheat_is_rejected_as_a_plain_user(name: str) -> None:
    judge(BY_NAME[name], battery("plain", "--brief"))


@pytest.mark.slow
@pytest.mark.parametrize("name", WAITING)
@pytest.mark.parametrize("user", ["self", "plain"])
def test_cheat_that_waits_is_rejected(user: str, name: str) -> None:
    judge(BY_NAME[name], battery(user))


@pytest.mark.slow
@pytest.mark.parametrize("name", BRIEF)
@pytest.mark.parametrize("system", ["--container", "landlock", "namespaces"])
def test_cheat_is_rejected_on_a_lesser_system(system: str, name: str) -> None:
    judge(BY_NAME[name], battery("self", "--brief", system))


@pytest.mark.parametrize("user", ["self", "plain"])
def test_cheats_leave_nothing_behind(user: str) -> None:
    found = battery(user, "--brief")
    everything = {"function": "pass", "stdin": "pass", "check": "pass"}
    assert found["before"] == everything, "a solution that knows the secret passes"
    assert found["after"] == everything, "and still does after all cheats"
    assert not found["zygotes_died"]
    assert not found["connected"]
    assert found["files"] == ["answers.txt"]
    assert (found["uid"] == 0) == (user == "self" and os.getuid() == 0)


@pytest.mark.slow
def test_a_container_on_an_old_kernel_still_has_a_sandbox() -> None:
    described = battery("self", "--brief", "--container")["sandbox"]
    assert described == "sandbox: seccomp, no files at all, rlimits"
