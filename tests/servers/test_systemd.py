"""Units: a drop-in for each config, and the unit as it was afterwards, however the run ends.

The systemctl here is a stand-in that keeps real processes; the ssh is the real one against a real sshd on loopback.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from pytest_ddtree.client.client import AsyncClient
from pytest_ddtree.grid import BASELINE, Config
from pytest_ddtree.servers.errors import (
    DiedDuringStart,
    FakedServer,
    ForeignServer,
    ServerError,
    SetupRefused,
)
from pytest_ddtree.servers.handle import Server
from pytest_ddtree.servers.host import Done, Host
from pytest_ddtree.servers.lease import Lease
from pytest_ddtree.servers.pool import ServerPool
from pytest_ddtree.servers.ports import PortHold
from pytest_ddtree.servers.settings import ServerSettings
from pytest_ddtree.servers.systemd import SystemdBackend
from pytest_ddtree.servers.unit import Unit
from pytest_ddtree.workload.watching import Watch

from . import support

B8 = Config("tree", 8, 8, 128)
D_FLAGS = ["--speculative-dflash-enable-ddtree", "--speculative-draft-window-size"]


class Machine:
    """A host with one unit that serves speculatively, as its owner set it up."""

    def __init__(self, root: Path, script: dict[str, Any]) -> None:
        self.root = root
        for folder in ("units", "run", "state", "timers"):
            (root / folder).mkdir(parents=True)
        # Held beside the unit's own server, also while that restarts; the kernel gives none of these to somebody else.
        self.hold = PortHold.low("127.0.0.1")
        self.port = self.hold.port
        fake = {
            "flags": ["--speculative-draft-window-size"],
            "switches": ["--speculative-dflash-enable-ddtree"],
            **script,
        }
        text = json.dumps(fake).replace('"', '\\"')
        self.unit = root / "units" / "llm.service"
        self.unit.write_text(
            "[Unit]\nDescription=the team's model\n\n[Service]\n"
            f'Environment="PYTHONPATH={support.FAKE}" "TEST_RUN_DIR={root}"\nEnvironment="FAKE_SGLANG={text}"\n'
            f"ExecStart={sys.executable} -m sglang.launch_server --model-path /models/target \\\n"
            f"  --port {self.port} --speculative-algorithm DFLASH --speculative-num-draft-tokens 8 \\\n"
            "  --speculative-draft-model-path /models/draft --served-model-name team\nRestart=always\n"
        )

    def calls(self) -> list[str]:
        path = self.root / "calls"
        return path.read_text().splitlines() if path.exists() else []

    def starts(self) -> list[str]:
        path = self.root / "starts"
        return path.read_text().splitlines() if path.exists() else []

    def drop_ins(self) -> list[Path]:
        return list((self.root / "run").rglob("*.conf"))

    def timers(self) -> list[str]:
        return sorted(path.name for path in (self.root / "timers").iterdir())

    def restored(self) -> bool:
        return not self.drop_ins() and not self.timers() and "served-model-name team" in self.starts()[-1]


@pytest.fixture
def machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Iterator[Machine]:
    made = Machine(tmp_path / "machine", getattr(request, "param", {}))
    monkeypatch.setenv("FAKE_SYSTEMD", str(made.root))
    support.use_standins(monkeypatch)
    monkeypatch.setenv("PYTHONPATH", str(support.FAKE))
    systemctl("daemon-reload")
    systemctl("start", "llm.service")
    try:
        yield made
    finally:
        for path in (made.root / "timers").glob("*"):
            with contextlib.suppress(ProcessLookupError, FileNotFoundError):
                os.killpg(int(path.read_text()), signal.SIGKILL)
        systemctl("stop", "llm.service")
        made.hold.release()
    assert support.eventually(lambda: not support.alive(made.root))


def systemctl(*words: str) -> None:
    subprocess.run([str(support.STANDIN / "systemctl"), *words], check=True)


def settings(tmp_path: Path, **changes: Any) -> ServerSettings:
    values: dict[str, Any] = {
        "kind": "systemd",
        "run_dir": tmp_path / "run",
        "unit": "llm",
        "model": "/models/target",
        "dialect": "D",
        "start_timeout_s": support.START_S,
        "stop_timeout_s": 3.0,
        "max_concurrency": 8,
        **changes,
    }
    return ServerSettings(**values)


def pool(tmp_path: Path, machine: Machine, news: list[str] | None = None, **changes: Any) -> ServerPool:
    made = settings(tmp_path, **changes)
    backend = SystemdBackend(made, unit_root=str(machine.root / "run"), lease_s=changes.pop("lease_s", 30.0))
    return ServerPool(made, backend=backend, progress=(news if news is not None else []).append)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"unit": "typo"}, "unit typo.service cannot be read on this host"),
        ({"unit": "empty"}, "unit empty.service has no ExecStart="),
        ({"dialect": "Q"}, "--ddtree-dialect Q cannot be used"),
    ],
    ids=["unknown", "starts nothing", "dialect"],
)
def test_what_cannot_be_is_refused_and_the_unit_is_not_touched(
    tmp_path: Path, machine: Machine, changes: dict[str, Any], said: str
) -> None:
    (machine.root / "units" / "empty.service").write_text("[Service]\nType=oneshot\n")
    calls = len(machine.starts())
    with pool(tmp_path, machine, **changes) as servers, pytest.raises(ServerError, match=said):
        servers.check([B8])
    with pool(tmp_path, machine) as servers:
        servers.check([B8])
    assert len(machine.starts()) == calls
    assert machine.drop_ins() == []


def test_configs_come_and_the_unit_is_as_it_was(tmp_path: Path, machine: Machine) -> None:
    before = machine.unit.read_text()
    news: list[str] = []
    with (
        held_port() as port,
        pool(
            tmp_path,
            machine,
            news,
            seed=3,
            server_args=("--port", str(port), "--served-model-name", "mine"),
        ) as servers,
    ):
        tree = servers.get(B8)
        assert tree.url == f"http://127.0.0.1:{port}", "as the user says, and the name is ours"
        assert tree.mismatches(required=["budget", "window"]) == []
        assert tree.effective.budget == 8
        command = machine.starts()[-1]
        assert "--speculative-num-draft-tokens 9" in command
        assert "--speculative-num-draft-tokens 8 " not in command
        assert "--served-model-name team" not in command
        assert (
            command.count("--speculative-draft-model-path") == 1
            or "--speculative-draft-model-path" not in command
        )
        assert len(machine.drop_ins()) == 1
        assert "fired up" in tree.log_tail()
        base = servers.get(BASELINE)
        assert base.effective.algorithm == "none"
        assert "--speculative" not in machine.starts()[-1]
        assert "--disable-overlap-schedule" in machine.starts()[-1]
    assert machine.restored()
    assert machine.unit.read_text() == before
    assert not [line for line in news if "could not be removed" in line]
    assert support.eventually(lambda: _serves(machine.port) == "team")


def test_what_the_journal_says_during_a_round_is_seen(tmp_path: Path, machine: Machine) -> None:
    """A fall-back to eager decoding shows only under load, long after the log was read for the start."""
    line = "[t] Decode batch, #running-req: 1, cuda graph: False, #queue-req: 0\n"

    async def watched(tree: Server) -> tuple[str, ...]:
        async with AsyncClient(tree.url) as client:
            watch = Watch(client, log=tree.log_path, refresh=tree.refresh_log, graphs=True)
            await watch.begin()
            with (machine.root / "journal").open("a") as journal:
                journal.write(line)
            return await watch.verdict(())

    with pool(tmp_path, machine) as servers:
        tree = servers.get(B8)
        (why,) = asyncio.run(watched(tree))
        assert "eager" in why
        assert asyncio.run(watched(tree)) == (why,), "only what is new counts"
        assert tree.log_path is not None
        assert tree.log_path.read_text().count("fired up") == (machine.root / "journal").read_text().count(
            "fired up"
        )


@pytest.mark.parametrize(
    "machine", [{"crash": {"at": "load", "text": "ValueError: DFLASH needs more"}}], indirect=True
)
def test_a_start_that_fails(tmp_path: Path, machine: Machine) -> None:
    with pool(tmp_path, machine) as servers, pytest.raises(DiedDuringStart, match="DFLASH needs more"):
        servers.get(B8)
    assert not machine.drop_ins()
    assert not machine.timers()


def test_the_restart_race_is_waited_out(
    tmp_path: Path, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert support.eventually(lambda: _serves(machine.port) == "team")
    monkeypatch.setenv("FAKE_SYSTEMD_RACE", "1.0")
    with pool(tmp_path, machine) as servers:
        server = servers.get(B8)
        assert str(server.info["served_model_name"]).startswith("ddtree-b8-k8-w128-")
        assert server.mismatches() == []
        monkeypatch.delenv("FAKE_SYSTEMD_RACE")


@pytest.mark.slow
def test_an_old_server_that_never_goes_is_never_measured(
    tmp_path: Path, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert support.eventually(lambda: _serves(machine.port) == "team")
    monkeypatch.setenv("FAKE_SYSTEMD_RACE", "-1")
    with pool(tmp_path, machine, start_timeout_s=8.0) as servers:
        with pytest.raises(ServerError, match="from a server that serves 'team'") as caught:
            servers.get(B8)
        monkeypatch.delenv("FAKE_SYSTEMD_RACE")
    assert not isinstance(caught.value, ForeignServer)


def test_pytest_killed(tmp_path: Path, machine: Machine) -> None:
    with owning(tmp_path, machine) as owner:
        assert machine.drop_ins()
        owner.kill()
    assert support.eventually(machine.restored), (machine.calls(), machine.timers(), machine.starts())
    assert support.eventually(lambda: _serves(machine.port) == "team")


@pytest.mark.slow
def test_link_lost(tmp_path: Path, machine: Machine) -> None:
    """Neither pytest nor its supervisor can reach the unit's host any more: the lease there restores the unit."""
    with owning(tmp_path, machine, "6") as owner:
        assert support.eventually(lambda: any(name.endswith("-3") for name in machine.timers())), (
            "renewed while we live"
        )
        for pid in [owner.pid, *_children(owner.pid)]:
            os.kill(pid, signal.SIGKILL)
    assert support.eventually(lambda: not machine.drop_ins())
    assert support.eventually(lambda: _serves(machine.port) == "team")


@dataclass(frozen=True)
class Flaky(Host):
    """A host whose link is lost for some commands, before or after they were carried out there."""

    lost: list[str] = field(default_factory=list)

    def run(self, script: str, *, stdin: str = "", timeout_s: float = 60.0) -> Done:
        when = self.lost.pop(0) if self.lost else ""
        done = None if when == "before" else super().run(script, stdin=stdin, timeout_s=timeout_s)
        if done is None or when == "after":
            raise ServerError("the link is lost")
        return done


@pytest.mark.parametrize("when", ["before", "after"])
def test_after_a_renewal_that_failed_one_timer_is_left(machine: Machine, when: str) -> None:
    """An older one would restore the unit amid a measurement."""
    unit = Unit(Flaky(lost=["", when]), "llm", str(machine.root / "run"))
    lease = Lease(unit, "token", 600.0)
    try:
        lease.hold()
        with pytest.raises(ServerError, match="link is lost"):
            lease.hold()
        lease.hold()
        assert machine.timers() == ["ddtree-lease-token-3"]
    finally:
        lease.end()


@pytest.mark.parametrize("machine", [{"info": {"speculative_accept_threshold_single": 0.5}}], indirect=True)
def test_nothing_is_left_of_a_server_that_is_refused_once_it_is_up(tmp_path: Path, machine: Machine) -> None:
    assert support.eventually(lambda: _serves(machine.port) == "team")
    with pool(tmp_path, machine) as servers:
        with pytest.raises(FakedServer):
            servers.get(B8)
        assert _serves(machine.port) is None


def test_a_port_that_only_systemd_knows_is_named(tmp_path: Path, machine: Machine) -> None:
    machine.unit.write_text(machine.unit.read_text().replace(f"--port {machine.port}", "--port %i"))
    with pool(tmp_path, machine) as servers, pytest.raises(SetupRefused, match="'%i'") as caught:
        servers.check([B8])
    assert "--ddtree-server-args" in str(caught.value)
    with pool(tmp_path, machine, server_args=("--port", "30000")) as servers:
        servers.check([B8])


def test_a_unit_with_a_dot_in_its_name(tmp_path: Path, machine: Machine) -> None:
    shutil.copy(machine.unit, machine.unit.with_name("llm.v2.service"))
    with pool(tmp_path, machine, unit="llm.v2") as servers:
        servers.check([B8])
    assert Unit(Host(), "llm.v2").folder == "/run/systemd/system/llm.v2.service.d"


def test_unit_missing(tmp_path: Path, machine: Machine) -> None:
    with (
        pool(tmp_path, machine, unit="nope") as servers,
        pytest.raises(ServerError, match=r"unit nope\.service cannot be read"),
    ):
        servers.get(B8)


def test_a_drop_in_of_another_run_is_respected(tmp_path: Path, machine: Machine) -> None:
    folder = machine.root / "run" / "llm.service.d"
    folder.mkdir()
    (folder / "90-pytest-ddtree.conf").write_text("[Service]\n")
    with pool(tmp_path, machine) as servers, pytest.raises(ServerError, match="drop-in of an earlier run"):
        servers.get(B8)
    assert machine.drop_ins()


def test_no_unit_named(tmp_path: Path) -> None:
    with pytest.raises(ServerError, match="--ddtree-unit"):
        SystemdBackend(settings(tmp_path, unit=None))


@pytest.fixture
def sshd(tmp_path: Path, machine: Machine, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A real sshd on loopback with keys of its own; yields a host name that the real ssh knows through its configuration."""
    daemon, client = shutil.which("sshd") or "/usr/sbin/sshd", shutil.which("ssh")
    if not Path(daemon).exists() or client is None:
        pytest.skip("no OpenSSH server and client on this host (apt-get install openssh-server)")
    if os.getuid() == 0:
        Path("/run/sshd").mkdir(exist_ok=True)
    folder = tmp_path / "ssh"
    folder.mkdir(mode=0o700)
    for key in ("host", "user"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / key)], check=True)
    hold = PortHold.low("127.0.0.1")
    port = hold.port
    variables = {
        "FAKE_SYSTEMD": str(machine.root),
        "PATH": os.environ["PATH"],
        "PYTHONPATH": str(support.FAKE),
    }
    setenv = " ".join(f"{name}={value}" for name, value in variables.items())
    (folder / "sshd_config").write_text(
        f"Port {port}\nListenAddress 127.0.0.1\nHostKey {folder}/host\nAuthorizedKeysFile {folder}/user.pub\nStrictModes no\n"
        f"PasswordAuthentication no\nUsePAM no\nPidFile none\nPermitRootLogin prohibit-password\nSetEnv {setenv}\n"
    )
    (folder / "config").write_text(
        f"Host gpubox\n  HostName 127.0.0.1\n  Port {port}\n  IdentityFile {folder}/user\n  IdentitiesOnly yes\n"
        f"  StrictHostKeyChecking no\n  UserKnownHostsFile {folder}/known\n  LogLevel ERROR\n"
    )
    wrapper = folder / "bin" / "ssh"
    wrapper.parent.mkdir()
    wrapper.write_text(f'#!/bin/sh\nexec {client} -F {folder}/config "$@"\n')
    wrapper.chmod(0o755)
    monkeypatch.setenv("PATH", f"{wrapper.parent}{os.pathsep}{os.environ['PATH']}")
    process = subprocess.Popen(
        [daemon, "-D", "-e", "-f", str(folder / "sshd_config")], stderr=subprocess.PIPE
    )
    try:
        if (
            not support.eventually(lambda: _listens(port) or process.poll() is not None)
            or process.poll() is not None
        ):
            pytest.skip(f"sshd does not run here: {process.communicate()[1][-200:]!r}")
        yield "gpubox"
    finally:
        process.terminate()
        process.communicate()
        hold.release()


@pytest.mark.slow
def test_over_ssh(tmp_path: Path, machine: Machine, sshd: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # The commands must run over there: the local stand-in has no machine any more.
    with monkeypatch.context() as here, pool(tmp_path, machine, ssh=sshd) as servers:
        here.delenv("FAKE_SYSTEMD")
        server = servers.get(B8)
        assert server.effective.budget == 8
        assert server.url != f"http://127.0.0.1:{machine.port}", "through a tunnel"
        servers.close()
    assert machine.restored()


def test_host_unreachable(tmp_path: Path, machine: Machine) -> None:
    if shutil.which("ssh") is None:
        pytest.skip("no ssh on this host")
    # No name that a resolver would look for, perhaps for minutes.
    with (
        pool(tmp_path, machine, ssh="ssh://127.0.0.1:1") as servers,
        pytest.raises(ServerError, match=r"ssh://127\.0\.0\.1:1 cannot be reached by ssh"),
    ):
        servers.get(B8)


@contextlib.contextmanager
def held_port() -> Iterator[int]:
    hold = PortHold.low("127.0.0.1")
    try:
        yield hold.port
    finally:
        hold.release()


_OWNER = f"""
import sys, time
from pathlib import Path
sys.path.insert(0, {str(Path(__file__).parents[2])!r})
from tests.servers.test_systemd import B8, settings
from pytest_ddtree.servers.pool import ServerPool
from pytest_ddtree.servers.ports import PortHold
from pytest_ddtree.servers.systemd import SystemdBackend
run, machine, *lease = sys.argv[1:]
made = settings(Path(run))
backend = SystemdBackend(made, unit_root=machine + "/run", lease_s=float(lease[0]) if lease else 60.0)
pool = ServerPool(made, backend=backend)
pool.get(B8)
print("ready", flush=True)
time.sleep(600)
"""


@contextlib.contextmanager
def owning(tmp_path: Path, machine: Machine, *lease: str) -> Iterator[subprocess.Popen[str]]:
    """A process that has taken the unit over."""
    command = [sys.executable, "-c", _OWNER, str(tmp_path), str(machine.root), *lease]
    owner = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert owner.stdout is not None
        assert owner.stdout.readline().strip() == "ready"
        yield owner
    finally:
        owner.kill()
        owner.communicate()


def _children(pid: int) -> list[int]:
    from pytest_ddtree.servers import proc

    return list(proc.descendants(pid, proc.table()))


def _listens(port: int) -> bool:
    from pytest_ddtree.servers import ports

    return ports.listening("127.0.0.1", port)


def _serves(port: int) -> str | None:
    from pytest_ddtree.servers.http import Http, Unreachable

    try:
        with Http(f"http://127.0.0.1:{port}") as http:
            return str(http.get("/model_info").field("served_model_name"))
    except Unreachable:
        return None
