"""Words before the server's command: what is recognised, what is refused, and that a container is really gone."""

from __future__ import annotations

import getpass
import os
import sys
from pathlib import Path

import pytest

from pytest_ddtree.grid import Config
from pytest_ddtree.servers.errors import ConfigNotSupported
from pytest_ddtree.servers.launcher import Launcher, prepare

from . import support

B8 = Config("tree", 8, 4)


def made(*prefix: str, stop: tuple[str, ...] = (), **env: str) -> Launcher:
    return prepare(prefix, "ddtree-1", stop_command=stop, env=env, grace_s=7.0)


def test_no_prefix() -> None:
    assert made() == Launcher()


@pytest.mark.parametrize(
    "prefix", [("numactl", "-N0"), ("env", "A=1"), ("/usr/bin/taskset", "-c", "0-7"), ("sudo", "-E")]
)
def test_transparent_programs_pass(monkeypatch: pytest.MonkeyPatch, prefix: tuple[str, ...]) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert made(*prefix) == Launcher(prefix)


@pytest.mark.parametrize(
    "prefix", [("sudo", "-E"), ("nice", "/usr/bin/sudo", "-u", "nobody", "nsys", "profile")]
)
def test_a_server_of_another_user_could_not_be_stopped(
    monkeypatch: pytest.MonkeyPatch, prefix: tuple[str, ...]
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(getpass, "getuser", lambda: "me")
    with pytest.raises(ConfigNotSupported, match="another user"):
        made(*prefix)
    assert made(*prefix, stop=("sudo", "stop-it")).stop_commands == (("sudo", "stop-it"),)
    own = ("sudo", "-u", "me", "nsys")
    assert made(*own) == Launcher(own)
    box = made("sudo", "docker", "run", "--network=host", "image")
    assert box.stop_commands[0][:3] == ("sudo", "docker", "stop")


def test_docker_gets_a_name_a_label_and_the_environment() -> None:
    launcher = made("docker", "run", "--gpus", "all", "--network=host", "image:tag", TOPK="4")
    assert launcher.prefix == (
        *(
            "docker",
            "run",
            "--name",
            "ddtree-1",
            "--label",
            "pytest-ddtree=ddtree-1",
            "--rm",
            "--env",
            "TOPK=4",
        ),
        *("--gpus", "all", "--network=host", "image:tag"),
    )
    assert launcher.stop_commands == (
        ("docker", "stop", "--time", "7", "ddtree-1"),
        ("docker", "rm", "--force", "ddtree-1"),
    )
    assert launcher.foreign


def test_a_name_of_the_user_is_used() -> None:
    launcher = made("sudo", "podman", "run", "--rm", "--name", "mine", "--net", "host", "image")
    assert launcher.stop_commands[0] == ("sudo", "podman", "stop", "--time", "7", "mine")
    assert launcher.prefix.count("--name") == 1
    assert launcher.prefix.count("--rm") == 1


@pytest.mark.parametrize(
    ("prefix", "message"),
    [
        (("docker", "run", "image"), "add --network host"),
        (("docker", "run", "-p", "30000:30000", "image"), "add --network host"),
        (("docker", "exec", "box"), "without `run`"),
        (("kubectl", "run"), "--ddtree-stop-command"),
    ],
)
def test_refused(prefix: tuple[str, ...], message: str) -> None:
    with pytest.raises(ConfigNotSupported, match=message):
        made(*prefix)


def test_slurm() -> None:
    launcher = made("srun", "-N1", "--gres=gpu:8")
    assert launcher.prefix == ("srun", "--job-name=ddtree-1", "-N1", "--gres=gpu:8")
    assert launcher.stop_commands == (("scancel", "--me", "--name=ddtree-1"),)
    assert made("srun", "-Jmine", "x").stop_commands == (("scancel", "--me", "--name=mine"),)


def test_unknown_launcher_with_a_stop_command() -> None:
    launcher = made("kubectl", "run", "{name}", stop=("kubectl", "delete", "pod", "{name}"))
    assert launcher.prefix == ("kubectl", "run", "ddtree-1")
    assert launcher.stop_commands == (("kubectl", "delete", "pod", "ddtree-1"),)
    assert launcher.foreign


@pytest.mark.parametrize("script", [{}, {"sigterm": "ignore"}], ids=["obeys", "ignores-sigterm"])
def test_a_container_is_no_child_of_ours_and_is_stopped_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: dict[str, object]
) -> None:
    box = tmp_path / "docker"
    box.mkdir()
    monkeypatch.setenv("FAKE_DOCKER", str(box))
    support.use_standins(monkeypatch)
    prefix = ("docker", "run", "--network", "host", "image")
    with support.pool(
        tmp_path, script, launch_prefix=prefix, python=sys.executable, stop_timeout_s=6.0
    ) as pool:
        server = pool.get(B8)
        assert server.mismatches(required=["budget"]) == [], "the environment reached the container"
        (name,) = [path.name for path in box.iterdir() if path.name.startswith("ddtree-b8")]
        pool.stop(B8)
        assert not (box / name).exists()
    verbs = [line.split()[0] for line in (box / "calls").read_text().splitlines()]
    assert verbs == ["run", "stop", "rm"]
    assert support.eventually(lambda: support.alive(tmp_path) == {})


def test_numactl_like_programs_are_part_of_our_tree(tmp_path: Path) -> None:
    with support.pool(
        tmp_path, {"sigterm": "ignore"}, launch_prefix=("nice", "-n", "1"), stop_timeout_s=0.5
    ) as pool:
        pool.get(B8)
    assert support.alive(tmp_path) == {}
