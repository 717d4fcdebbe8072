"""The fault harness: each scenario ends in the right outcome, with a text that helps, and nothing survives."""

from __future__ import annotations

import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pytest_ddtree.grid import BASELINE, Config
from pytest_ddtree.servers import ports
from pytest_ddtree.servers.errors import (
    ConfigNotSupported,
    DiedDuringStart,
    FakedServer,
    ForeignServer,
    LauncherFailed,
    PoolClosed,
    PortInUse,
    ServerDied,
    ServerError,
    SetupRefused,
    StartFailed,
    StartTimeout,
)
from pytest_ddtree.servers.pool import ServerPool
from pytest_ddtree.servers.supervise import Supervisor

from . import support

CAPTURE = Path(__file__).parents[1] / "data" / "sglang-ddtree-fork" / "tree8w.server.log"
B8 = Config("tree", 8, 4)


@pytest.fixture(autouse=True)
def no_survivors(tmp_path: Path) -> Iterator[None]:
    yield
    assert support.eventually(lambda: not support.alive(tmp_path)), support.alive(tmp_path)


def fails(tmp_path: Path, script: dict[str, Any], **changes: Any) -> ServerError:
    """The error of a start that must fail; a second request repeats it without another start."""
    with support.pool(tmp_path, script, **changes) as pool:
        with pytest.raises(ServerError) as caught:
            pool.get(B8)
        if isinstance(caught.value, StartFailed):
            with pytest.raises(type(caught.value)):
                pool.get(B8)
            assert len(pool.starts) <= 1
            assert not any(start.ok for start in pool.starts)
        assert pool.servers == ()
    return caught.value


def until(marker: str) -> list[list[Any]]:
    """The captured log up to a line, to be replayed at once."""
    lines: list[str] = []
    for line in CAPTURE.read_text().splitlines():
        lines.append(line)
        if marker in line:
            break
    return [[0, line] for line in lines]


@pytest.mark.parametrize(
    ("marker", "text", "name", "cause", "hint"),
    [
        (
            "Load weight begin",
            (
                "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 GiB.\nScheduler hit an exception: Traceback\n"
                "RuntimeError: Rank 0 scheduler died during initialization (exit code: -3)."
            ),
            "out of memory",
            "CUDA out of memory. Tried to allocate 20.00 GiB",
            "--mem-fraction-static",
        ),
        (
            "Capture cuda graph begin",
            "Exception: Capture cuda graph failed: CUDA error: an illegal memory access\nRuntimeError: Rank 0 scheduler died",
            "graph capture",
            "Capture cuda graph failed",
            "--disable-cuda-graph",
        ),
        (
            "Init torch distributed begin",
            "torch.distributed.DistBackendError: NCCL error in: init.cpp, unhandled system error",
            "NCCL",
            "NCCL error",
            "NCCL_DEBUG",
        ),
        (
            "server_args",
            "ValueError: DFLASH speculative decoding requires setting --speculative-draft-model-path.",
            "missing draft model",
            "requires setting --speculative-draft-model-path",
            "--ddtree-draft-model",
        ),
        (
            "server_args",
            "OSError: /models/draft does not appear to have a file named config.json.",
            "missing draft model",
            "/models/draft",
            "--ddtree-draft-model",
        ),
        (
            "server_args",
            "ValueError: --speculative-draft-window-size must be >= --speculative-num-draft-tokens (block_size).",
            "refused config",
            "--speculative-draft-window-size must be >=",
            "refuses this config",
        ),
        (
            "UserWarning",
            "ModuleNotFoundError: No module named 'torch'",
            "missing package",
            "No module named 'torch'",
            "--ddtree-python",
        ),
    ],
    ids=["oom", "graph-capture", "nccl", "no-draft-flag", "no-draft-files", "refused", "package"],
)
def test_death_while_loading_is_classified(
    tmp_path: Path, marker: str, text: str, name: str, cause: str, hint: str
) -> None:
    error = fails(tmp_path, {"log": until(marker), "crash": {"at": "load", "text": text, "code": 3}})
    assert isinstance(error, DiedDuringStart)
    assert f"ended before it was ready: exit code 3 ({name})" in error.what
    assert error.why is not None
    assert cause in error.why
    assert hint in (error.hint or "")
    assert text.splitlines()[-1] in error.log_tail
    assert str(error.log_path) in str(error)
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


def test_the_captured_draft_warning_is_no_cause(tmp_path: Path) -> None:
    """The real log names the draft folder in a harmless line before the real cause."""
    script = {
        "log": until("max_num_reqs"),
        "crash": {"at": "load", "text": "RuntimeError: something else entirely"},
    }
    assert fails(tmp_path, script).why == "RuntimeError: something else entirely"


def test_unknown_flag(tmp_path: Path) -> None:
    error = fails(tmp_path, {}, server_args=("--no-such-flag",))
    assert isinstance(error, DiedDuringStart)
    assert error.why == "launch_server.py: error: unrecognized arguments: --no-such-flag"
    assert "exit code 2 (unknown flag)" in error.what


def test_crash_in_warm_up(tmp_path: Path) -> None:
    error = fails(
        tmp_path,
        {"warm_s": 0.3, "crash": {"at": "warmup", "text": "Initialization failed. warmup error: boom"}},
    )
    assert isinstance(error, DiedDuringStart)
    assert "warm-up failed" in error.what


def test_killed_by_the_kernel(tmp_path: Path) -> None:
    error = fails(tmp_path, {"crash": {"at": "load", "signal": int(signal.SIGKILL), "text": "loading"}})
    assert "killed by SIGKILL: often the kernel, for lack of memory" in error.what


def test_a_death_that_the_log_explains_is_not_laid_to_the_kernel(tmp_path: Path) -> None:
    """As a real server died on a full card: its scheduler failed, and it killed its own processes."""
    text = "torch.AcceleratorError: CUDA error: out of memory\nkill_process_tree called: parent_pid=1"
    error = fails(tmp_path, {"crash": {"at": "load", "signal": int(signal.SIGKILL), "text": text}})
    assert error.what.endswith("killed by SIGKILL (out of memory)")


def test_exit_code_zero_is_a_death_too(tmp_path: Path) -> None:
    error = fails(tmp_path, {"crash": {"at": "load", "code": 0, "text": "bye"}})
    assert isinstance(error, DiedDuringStart)
    assert "exit code 0" in error.what


def test_port_in_use(tmp_path: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        error = fails(tmp_path, {}, port=other.getsockname()[1])
    assert isinstance(error, PortInUse)
    assert f"it is held by {os.getpid()} (" in str(error)


def test_port_taken_while_loading(tmp_path: Path) -> None:
    """A server that sets SO_REUSEPORT tricks can still snatch a held port; the failed bind is then recognised."""
    text = "[Errno 98] error while attempting to bind on address ('127.0.0.1', 30000): address already in use"
    error = fails(tmp_path, {"crash": {"at": "load", "text": text}})
    assert isinstance(error, PortInUse)


def test_foreign_server(tmp_path: Path) -> None:
    error = fails(tmp_path, {"name": "somebody-elses-model"})
    assert isinstance(error, ForeignServer)
    assert "it serves 'somebody-elses-model'" in str(error)


LOG = Path("logs", "b8-k4-wnone-1.log")


def test_slow_load_passes_the_deadline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    support.let_the_deadline_come(monkeypatch, tmp_path / LOG, "Load weight begin")
    error = fails(tmp_path, {"log": until("Load weight begin"), "load_s": 600})
    assert isinstance(error, StartTimeout)
    assert "not ready within 60 s; last state: /health: ConnectError" in error.what
    assert error.what.endswith("; loading weights")


def test_health_stays_503(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    support.let_the_deadline_come(monkeypatch, tmp_path / LOG, '"GET /health HTTP/1.1" 503')
    error = fails(tmp_path, {"health": "503"})
    assert isinstance(error, StartTimeout)
    assert "last state: /health answers 503" in error.what
    assert "it listens and does not get healthy" in (error.hint or "")


def test_health_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    support.let_the_deadline_come(monkeypatch, tmp_path / LOG, "fired up", 1.0)
    assert isinstance(fails(tmp_path, {"health": "hang"}), StartTimeout)


def test_healthy_but_generates_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    support.let_the_deadline_come(monkeypatch, tmp_path / LOG, "fired up", 2.0)
    error = fails(tmp_path, {"generate": "hang"})
    assert isinstance(error, StartTimeout)
    assert "the checked generation did not come" in error.what
    assert "/health alone" in (error.hint or "")


def test_an_error_in_answer_to_the_check_and_then_death_is_death(tmp_path: Path) -> None:
    text = "RuntimeError: CUDA error: an illegal memory access was encountered"
    error = fails(tmp_path, {"generate": "500", "crash": {"at": "answered", "text": text}})
    assert isinstance(error, DiedDuringStart)
    assert error.why == text


def test_a_start_without_a_word_says_so(tmp_path: Path) -> None:
    error = fails(tmp_path, {"crash": {"at": "load", "text": "", "code": 0}})
    assert isinstance(error, DiedDuringStart)
    assert "exit code 0" in error.what
    assert error.why == "it wrote nothing to its log"
    assert "by hand" in (error.hint or "")


@pytest.mark.parametrize(
    ("mode", "word"),
    [("500", "answers 500: "), ("empty", "got 0 ids"), ("short", "got 9 ids and completion_tokens=4")],
)
def test_healthy_but_generates_nonsense(tmp_path: Path, mode: str, word: str) -> None:
    error = fails(tmp_path, {"generate": mode})
    assert isinstance(error, StartFailed)
    assert word in str(error)


def test_crash_in_the_checked_generation(tmp_path: Path) -> None:
    script = {
        "crash": {"at": "run", "after": 0, "text": "RuntimeError: CUDA error: device-side assert triggered"}
    }
    error = fails(tmp_path, script)
    assert isinstance(error, DiedDuringStart)
    assert error.why == "RuntimeError: CUDA error: device-side assert triggered"


def test_unreadable_effective_config(tmp_path: Path) -> None:
    error = fails(tmp_path, {"info": {"speculative_algorithm": "drop"}})
    assert isinstance(error, StartFailed)
    assert "does not say which speculative algorithm runs" in str(error)


def test_interpreter_missing(tmp_path: Path) -> None:
    error = fails(tmp_path, {}, python="/no/such/python")
    assert isinstance(error, LauncherFailed)
    assert "No such file or directory: '/no/such/python'" in str(error)
    assert "--ddtree-python" in str(error)


def test_no_sglang_in_the_interpreter(tmp_path: Path) -> None:
    settings = support.settings(tmp_path, sglang_src=None, python=support.bare_python(tmp_path))
    with ServerPool(settings) as pool, pytest.raises(SetupRefused, match="has no SGLang"):
        pool.get(BASELINE)


def test_simulated_acceptance(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SGLANG_SIMULATE_ACC_LEN", "6")
    error = fails(tmp_path, {})
    assert isinstance(error, FakedServer)
    assert "SGLANG_SIMULATE_ACC_LEN=6" in str(error)


def test_relaxed_acceptance_read_back(tmp_path: Path) -> None:
    assert isinstance(fails(tmp_path, {"info": {"speculative_accept_threshold_acc": 0.9}}), FakedServer)


def test_config_that_the_build_cannot_express(tmp_path: Path) -> None:
    with (
        ServerPool(support.settings(tmp_path, {"flags": []})) as pool,
        pytest.raises(ConfigNotSupported) as caught,
    ):
        pool.get(B8)
    assert "dialect dflash" in str(caught.value)
    assert not list((tmp_path / "logs").glob("b8*"))


@pytest.mark.parametrize(
    "script",
    [
        {"sigterm": "ignore"},
        {"sigterm": 20},
        {"children": [{"sigterm": "ignore"}]},
        {"children": [{"sigterm": "ignore", "setsid": True}]},
        {"children": [{"sigterm": "ignore", "setsid": True, "clear_env": True}]},
        {"children": [{"life_s": 0.5}]},
    ],
    ids=["ignores-sigterm", "20-seconds", "child-ignores", "child-setsid", "child-hides", "child-ends"],
)
def test_stop_removes_the_whole_tree(tmp_path: Path, script: dict[str, Any]) -> None:
    with support.pool(tmp_path, script, stop_timeout_s=0.5) as pool:
        server = pool.get(B8)
        port = int(server.url.rpartition(":")[2])
        pool.stop(B8)
        assert support.alive(tmp_path).keys() <= set(), "before the supervisor itself has ended"
        assert ports.free("127.0.0.1", port)


def test_a_child_that_keeps_the_port_after_the_death_of_its_parent(tmp_path: Path) -> None:
    script = {"crash": {"at": "run", "text": "boom"}, "children": [{"sigterm": "ignore", "setsid": True}]}
    with support.pool(tmp_path, script, stop_timeout_s=0.5) as pool:
        server = pool.get(B8)
        _request(server.url)
        assert support.eventually(lambda: not server.running)
        with pytest.raises(ServerDied):
            server.check_alive()
        assert pool.get(B8).running
        assert len([line for line in support.alive(tmp_path).values() if "child_main" in line]) == 1


def test_supervisor_killed_by_somebody(tmp_path: Path) -> None:
    script = {"children": [{"sigterm": "ignore"}, {"sigterm": "ignore", "setsid": True}]}
    with support.pool(tmp_path, script, stop_timeout_s=1.0) as pool:
        pool.get(B8)
        (supervisor,) = [
            pid for pid, line in support.alive(tmp_path).items() if "servers.supervisor" in line
        ] or _supervisors()
        os.kill(supervisor, signal.SIGKILL)
        pool.close()


def test_alarm_breaks_off_a_start(tmp_path: Path) -> None:
    pool = support.pool(tmp_path, {"load_s": 60})
    timer = threading.Timer(0.6, pool.alarm)
    timer.start()
    with pytest.raises((PoolClosed, DiedDuringStart)):
        pool.get(B8)
    timer.join()
    pool.close()
    with pytest.raises(PoolClosed):
        pool.get(B8)


def test_a_start_after_the_alarm_is_no_fault_of_the_launcher(tmp_path: Path) -> None:
    """Ctrl-C between the supervisor's start and the server's, of which the interpreter tells the supervisor alone."""
    supervisor = Supervisor(tmp_path)
    try:
        os.write(supervisor.alarm_fd, bytes([signal.SIGINT]))
        supervisor._process.wait()
        with pytest.raises(PoolClosed):
            supervisor.start("b8-1", ["/bin/true"], env={}, cwd=tmp_path, log=tmp_path / "log")
    finally:
        supervisor.close()


def test_close_from_another_thread_breaks_off_a_start(tmp_path: Path) -> None:
    pool = support.pool(tmp_path, {"load_s": 60})
    timer = threading.Timer(0.6, pool.close)
    timer.start()
    with pytest.raises((PoolClosed, DiedDuringStart)):
        pool.get(B8)
    timer.join()


def test_a_failed_config_does_not_touch_the_others(tmp_path: Path) -> None:
    script = {"flags": [flag for flag in support.TREE_FLAGS if "topk" not in flag]}
    with support.pool(tmp_path, script) as pool:
        with pytest.raises(DiedDuringStart, match="unrecognized arguments: --speculative-ddtree-topk"):
            pool.get(B8)
        assert pool.get(BASELINE).running
        assert pool.get(Config("chain")).running


def test_long_lines_and_binary_in_the_log(tmp_path: Path) -> None:
    script = {
        "log": [[0, "x" * 100_000], [0, "\udcff bad \x00 bytes".encode("utf-8", "replace").decode()]],
        "crash": {"at": "load"},
    }
    error = fails(tmp_path, script)
    assert max(map(len, error.log_tail.splitlines())) <= 400
    assert error.why == "RuntimeError: scripted crash"


def test_foreign_process_is_never_touched(tmp_path: Path) -> None:
    """Same command line, same session even, but not started by us."""
    mine = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)", "sglang.launch_server"])
    try:
        with support.pool(tmp_path, {"sigterm": "ignore"}, stop_timeout_s=0.3) as pool:
            pool.get(B8)
        time.sleep(0.2)
        assert mine.poll() is None
    finally:
        mine.kill()
        mine.wait()


def _request(url: str) -> None:
    import httpx

    with httpx.Client(trust_env=False) as client, pytest.raises(httpx.HTTPError):
        client.post(f"{url}/generate", json={"text": "x", "sampling_params": {"max_new_tokens": 1}})


def _supervisors() -> list[int]:
    from pytest_ddtree.servers import proc

    return [
        p
        for p, q in proc.table().items()
        if q.ppid == os.getpid() and "servers.supervisor" in proc.command(p)
    ]
