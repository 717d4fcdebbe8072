"""One run a GPU; what a crash left is found and removed; what is not provably ours is not touched."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from pytest_ddtree.dialects.build import Build
from pytest_ddtree.dialects.reference import ReferenceDialect
from pytest_ddtree.grid import BASELINE
from pytest_ddtree.servers import gpu, local, proc, reap, registry, stale
from pytest_ddtree.servers.errors import DiedDuringStart, GpuBusy, SetupRefused, StopFailed
from pytest_ddtree.servers.gpu import Gpu
from pytest_ddtree.servers.local import LocalBackend
from pytest_ddtree.servers.lock import LOCK_DIR, HostLocks, SharedLocks
from pytest_ddtree.servers.pool import ServerPool

from . import support


def quiet(text: str) -> None:
    del text


def test_a_second_run_waits_and_then_names_the_holder() -> None:
    news: list[str] = []
    first = HostLocks(["gpu-A", "gpu-B"], timeout_s=1.0, progress=quiet)
    with pytest.raises(GpuBusy, match=f"held by process {os.getpid()} of ") as caught:
        HostLocks(["gpu-B"], timeout_s=0.2, progress=news.append)
    assert "waiting for GPU B: in use by process" in news[0]
    assert "pytest-ddtree reap" in str(caught.value)
    threading.Timer(0.3, first.release).start()
    HostLocks(["gpu-A"], timeout_s=60.0, progress=quiet).release()


def test_a_folder_for_locks_that_cannot_be_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv(LOCK_DIR, str(tmp_path / "file"))
    with pytest.raises(SetupRefused, match=r"file/gpu-A\.lock: Not a directory") as caught:
        HostLocks(["gpu-A"], timeout_s=1.0, progress=quiet)
    assert LOCK_DIR in str(caught.value)


def test_a_folder_on_a_file_system_without_locks_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(descriptor: int, operation: int) -> None:
        # As the kernel does it: flock(2) knows a descriptor, no name.
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setenv(LOCK_DIR, str(tmp_path))
    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.raises(SetupRefused, match=rf"{tmp_path}/gpu-A\.lock: No locks available"):
        HostLocks(["gpu-A"], timeout_s=1.0, progress=quiet)


def test_the_lock_lives_as_long_as_the_supervisor() -> None:
    locks = HostLocks(["gpu-A"], timeout_s=1.0, progress=quiet)
    child = subprocess.Popen(
        [sys.executable, "-c", "import time; time.sleep(60)"], pass_fds=locks.descriptors
    )
    try:
        locks.release()
        with pytest.raises(GpuBusy):
            HostLocks(["gpu-A"], timeout_s=0.1, progress=quiet)
    finally:
        child.kill()
        child.wait()
    HostLocks(["gpu-A"], timeout_s=60.0, progress=quiet).release()


def test_two_pools_on_one_gpu(tmp_path: Path) -> None:
    with support.pool(tmp_path / "a", gpus=("0",)) as first:
        first.get(BASELINE)
        with support.pool(tmp_path / "b", gpus=("0",), lock_timeout_s=0.3) as second, pytest.raises(GpuBusy):
            second.get(BASELINE)
        with support.pool(tmp_path / "c", gpus=("1",), lock_timeout_s=0.3) as third:
            assert third.get(BASELINE).running
    with support.pool(tmp_path / "d", gpus=("0",), lock_timeout_s=60.0) as fourth:
        assert fourth.get(BASELINE).running


class Card:
    """A host with two GPUs whose driver takes its time."""

    def __init__(self, releases_after: int) -> None:
        self.asked = 0
        self.pids: set[int] = set()
        self._releases_after = releases_after

    def devices(self) -> Sequence[Gpu]:
        return [Gpu(0, "GPU-aaaa-1", "H", 10, 5), Gpu(1, "GPU-bbbb-2", "H", 10, 5)]

    def holders(self) -> set[int]:
        self.asked += 1
        return self.pids if self.asked <= self._releases_after else set()


def test_stop_waits_until_our_processes_have_left_the_gpu(tmp_path: Path) -> None:
    card = Card(3)
    settings = support.settings(tmp_path, gpus=("1",))
    backend = LocalBackend(settings, ReferenceDialect(), Build(), gpus=card)
    with ServerPool(settings, backend=backend) as pool:
        server = pool.get(BASELINE)
        assert backend.gpus == ("GPU-bbbb-2",)
        assert "CUDA_VISIBLE_DEVICES=1" in (server.log_path or Path()).read_text().splitlines()[0]
        card.pids = {server.pid or 0, 1}
        pool.stop(BASELINE)
        assert card.asked > 3


def test_a_start_that_failed_leaves_the_gpu_free_for_the_next(tmp_path: Path) -> None:
    card = Card(3)
    card.pids = set(range(1, 1 << 22))
    settings = support.settings(tmp_path, {"crash": {"at": "load", "text": "RuntimeError: boom"}})
    backend = LocalBackend(settings, ReferenceDialect(), Build(), gpus=card)
    with ServerPool(settings, backend=backend) as pool, pytest.raises(DiedDuringStart):
        pool.get(BASELINE)
    assert card.asked > 3


def test_gpu_memory_that_is_never_released(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "_GPU_S", 0.2)
    card = Card(10**6)
    settings = support.settings(tmp_path)
    with ServerPool(settings, backend=LocalBackend(settings, ReferenceDialect(), Build(), gpus=card)) as pool:
        card.pids = {pool.get(BASELINE).pid or 0}
        with pytest.raises(StopFailed, match="still hold GPU memory"):
            pool.stop(BASELINE)


def test_a_living_process_is_none_of_those_that_were_stopped() -> None:
    """One of somebody else that was given the same id."""
    card = Card(10**6)
    gone = int(dead_run().partition("-")[0])
    card.pids = {os.getpid(), gone}
    assert gpu.still_held(card, {os.getpid()}, 0.0) == []
    assert gpu.still_held(card, {os.getpid(), gone}, 0.0) == [gone]


class Driver(ModuleType):
    """NVML of a host with a card whose memory is the host's own, and one that has fallen off the bus."""

    class NVMLError(Exception):
        pass

    def nvmlInit(self) -> None: ...

    def nvmlDeviceGetCount(self) -> int:
        return 2

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        if index == 0:
            raise self.NVMLError("GPU is lost")
        return index

    def nvmlDeviceGetUUID(self, handle: int) -> str:
        return f"GPU-{handle}"

    def nvmlDeviceGetName(self, handle: int) -> bytes:
        return b"GB10"

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> None:
        raise self.NVMLError("Not Supported")

    def nvmlDeviceGetComputeRunningProcesses(self, handle: int) -> list[SimpleNamespace]:
        return [SimpleNamespace(pid=7)]

    nvmlDeviceGetGraphicsRunningProcesses = nvmlDeviceGetMemoryInfo


def test_a_card_that_says_less_than_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", Driver("pynvml"))
    found = gpu.load()
    assert found is not None
    assert found.devices() == [Gpu(1, "GPU-1", "GB10", None, None)]
    assert found.holders() == {7}


def test_which_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    card = Card(0)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert gpu.visible(None, card) == ("GPU-aaaa-1", "GPU-bbbb-2")
    assert gpu.visible(None, None) == ("unknown",)
    assert gpu.visible(("0", "GPU-bbbb", "7"), card) == ("GPU-aaaa-1", "GPU-bbbb-2", "index-7")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1, 0")
    assert gpu.visible(None, card) == ("GPU-bbbb-2", "GPU-aaaa-1")
    assert gpu.visible(None, None) == ("index-1", "index-0")


@pytest.fixture(autouse=True)
def deaf_orphans_are_killed_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stale, "_TERM_S", 0.2)


ORPHAN = "import time, signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(600)"


def orphan(run_id: str) -> subprocess.Popen[bytes]:
    env = {**os.environ, proc.MARKER: f"{run_id}/b8-1"}
    process = subprocess.Popen(
        [sys.executable, "-c", ORPHAN], env=env, stdout=subprocess.PIPE, start_new_session=True
    )
    assert process.stdout is not None
    process.stdout.readline()
    return process


def dead_run() -> str:
    """The run id of a process that has ended."""
    code = f"import sys; sys.path[:0] = {sys.path!r}; from pytest_ddtree.servers import registry; print(registry.new_run_id())"
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.strip()


def finish(process: subprocess.Popen[Any]) -> None:
    process.kill()
    process.wait()
    assert process.stdout is not None
    process.stdout.close()


def test_a_server_of_a_crashed_run_is_reported_and_removed(tmp_path: Path) -> None:
    news: list[str] = []
    left = orphan(dead_run())
    try:
        settings = support.settings(tmp_path)
        backend = LocalBackend(settings, ReferenceDialect(), Build(), progress=news.append)
        with ServerPool(settings, backend=backend) as pool:
            pool.get(BASELINE)
        assert left.wait(60) == -signal.SIGKILL
        (line,) = [line for line in news if "left behind by an earlier run" in line and str(left.pid) in line]
        assert f"process {left.pid}: " in line
    finally:
        finish(left)


def test_runs_that_are_not_over_or_not_ours_are_left_alone() -> None:
    parts = dead_run().split("-")
    with contextlib.ExitStack() as stack:

        def living(run_id: str) -> subprocess.Popen[bytes]:
            process = orphan(run_id)
            stack.callback(finish, process)
            return process

        me = living(registry.new_run_id())
        other_namespace = living("-".join([parts[0], parts[1], "1", parts[3]]))
        strange = living("not-a-run")
        pids = {process.pid for leftover in stale.find() for process in leftover.processes}
        assert not pids & {me.pid, other_namespace.pid, strange.pid}
        assert reap.run([]) == 0
        for process in (me, other_namespace, strange):
            assert process.poll() is None


def test_reap(capsys: pytest.CaptureFixture[str], own_state: Path) -> None:
    run_id = dead_run()
    left = orphan(run_id)
    flag = own_state / "stopped"
    record = registry.Record(run_id, registry.Owner(1, 1), None)
    record.add(
        "b8-1", proc.Process(left.pid, 0, 0, 0, "S"), "/logs/b8-1.log", [["touch", str(flag)]], ["server"]
    )
    try:
        assert reap.run(["--dry-run"]) == 0
        assert left.poll() is None
        out = capsys.readouterr().out
        assert f"process {left.pid}: " in out
        assert "log: /logs/b8-1.log" in out
        assert f"to be stopped by: touch {flag}" in out
        assert reap.run([]) == 0
        assert left.wait(60) == -signal.SIGKILL
        assert flag.exists()
        assert capsys.readouterr().out.splitlines()[-1] == "removed"
        assert run_id not in {leftover.run_id for leftover in stale.find()}
        assert registry.records() == []
    finally:
        finish(left)


def test_reap_hurries_a_supervisor_whose_pytest_is_gone(tmp_path: Path) -> None:
    """The state between the death of pytest and the end of the stop job."""
    owner = Path(__file__).with_name("owner.py")
    process = subprocess.Popen(
        [sys.executable, str(owner), str(tmp_path), "{}", "wait"], stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline().strip() == "starting"
        assert process.stdout.readline().strip() == "ready"
        process.kill()
        process.wait()
        assert reap.run([]) == 0
        assert support.alive(tmp_path) == {}
    finally:
        finish(process)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a file away")
def test_records_of_others_are_skipped(own_state: Path) -> None:
    """They hold commands that would be run."""
    record = registry.Record(dead_run(), registry.Owner(1, 1), None)
    record.save()
    assert len(registry.records()) == 1
    os.chown(record.path, 12345, 12345)
    assert registry.records() == []
    record.remove()


def test_broken_records_are_skipped(own_state: Path) -> None:
    (own_state / "run-x.json").write_text("{")
    (own_state / "run-y.json").write_text('{"run": "y", "owner": [1]}')
    assert registry.records() == []
    stale.find()


@pytest.mark.parametrize("shared", [False, True])
def test_a_supervisor_that_cannot_be_had_leaves_the_gpu_free(tmp_path: Path, shared: bool) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "logs").write_text("no folder")
    locks = SharedLocks() if shared else None
    broken = support.pool(tmp_path / "a", gpus=("0",), locks=locks)
    with pytest.raises(FileExistsError):
        broken.get(BASELINE)
    with support.pool(tmp_path / "b", gpus=("0",), lock_timeout_s=1.0) as other:
        assert other.get(BASELINE).running
    broken.close()


def test_pools_of_one_session_share_a_lock_for_which_others_wait() -> None:
    shared = SharedLocks()
    first = shared.take(["gpu-A", "gpu-B"], timeout_s=1.0, progress=quiet)
    second = shared.take(["gpu-B"], timeout_s=0.1, progress=quiet)
    assert set(second.descriptors) < set(first.descriptors)
    first.release()
    first.release()
    HostLocks(["gpu-A"], timeout_s=0.1, progress=quiet).release()
    with pytest.raises(GpuBusy):
        HostLocks(["gpu-B"], timeout_s=0.1, progress=quiet)
    second.release()
    other = HostLocks(["gpu-B"], timeout_s=0.1, progress=quiet)
    with pytest.raises(GpuBusy):
        # What it got of the two before the other was refused is given back.
        shared.take(["gpu-A", "gpu-B"], timeout_s=0.1, progress=quiet)
    HostLocks(["gpu-A"], timeout_s=0.1, progress=quiet).release()
    other.release()
    shared.take(["gpu-A", "gpu-B"], timeout_s=0.1, progress=quiet).release()
