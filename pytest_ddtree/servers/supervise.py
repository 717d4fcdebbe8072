"""The pool's end of the supervisor: start it, ask it for starts and stops, hear of exits, raise the alarm from a signal handler."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from pytest_ddtree.servers import proc, registry, wakeup
from pytest_ddtree.servers.errors import LauncherFailed, PoolClosed, ServerError

_T = TypeVar("_T")

_ROOT = Path(__file__).resolve().parents[2]
_BOOT = (
    "import sys; sys.path.insert(0, sys.argv.pop(1)); "
    "from pytest_ddtree.servers.supervisor import main; sys.exit(main(sys.argv[1:]))"
)


@dataclass(frozen=True, slots=True)
class Stopped:
    """How a stop went: exit code of the main process (negative: signal), what had to be killed, what is still there."""

    code: int | None
    killed: tuple[int, ...]
    left: tuple[tuple[int, str], ...]
    seconds: float
    pids: tuple[int, ...] = ()
    """Every process that was ever seen to belong to it, for asking the GPU whether one still holds memory."""


class Supervisor:
    """A running supervisor process. Thread-safe; `alarm` may also be called from a signal handler."""

    def __init__(self, run_dir: Path, *, run_id: str | None = None, keep_fds: Sequence[int] = ()) -> None:
        self.run_id = run_id or registry.new_run_id()
        logs = run_dir / "logs"
        logs.mkdir(parents=True, exist_ok=True)
        self.log_path = logs / "supervisor.log"
        ours, theirs = socket.socketpair()
        alarm_r, self._alarm_w = os.pipe()
        os.set_blocking(self._alarm_w, False)
        me = proc.read(os.getpid())
        env = {**os.environ, proc.MARKER: f"{self.run_id}/supervisor"}
        with open(self.log_path, "ab") as log:
            self._process = subprocess.Popen(
                [
                    sys.executable,
                    *("-I", "-S", "-c", _BOOT, str(_ROOT), str(theirs.fileno()), str(alarm_r), self.run_id),
                    str(os.getpid()),
                    str(me.start if me else 0),
                ],
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=(theirs.fileno(), alarm_r, *keep_fds),
                start_new_session=True,
            )
        theirs.close()
        os.close(alarm_r)
        self._control = ours
        self._write_lock = threading.Lock()
        self._news = threading.Condition()
        self._started: dict[str, dict[str, Any]] = {}
        self._exits: dict[str, int] = {}
        self._stopped: dict[str, Stopped] = {}
        self._stopping = False
        self._gone = False
        self._reader = threading.Thread(target=self._read, name="ddtree-supervisor", daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def alarm_fd(self) -> int:
        """For `signal.set_wakeup_fd`: then Ctrl-C, SIGTERM and SIGHUP reach the supervisor whatever the main thread is doing."""
        return self._alarm_w

    @property
    def stopping(self) -> bool:
        """Whether an alarm made the supervisor stop everything."""
        return self._stopping

    def alarm(self) -> None:
        """Stop everything now; returns at once, takes no lock."""
        self._stopping = True
        with contextlib.suppress(OSError):
            os.write(self._alarm_w, b"\xff")

    def start(
        self,
        launch: str,
        argv: Sequence[str],
        *,
        env: Mapping[str, str],
        cwd: Path,
        log: Path,
        stop_commands: Sequence[Sequence[str]] = (),
        timeout_s: float = 30.0,
    ) -> int:
        """Start a process in a session of its own with its output in `log`; returns its id.

        Raises LauncherFailed, PoolClosed after an alarm.
        """
        if self._stopping:
            raise self._broken_off()
        full = {**env, proc.MARKER: f"{self.run_id}/{launch}", "SPT_NOENV": "1"}
        self._send(
            {
                "op": "start",
                "id": launch,
                "argv": list(argv),
                "env": full,
                "cwd": str(cwd),
                "log": str(log),
                "stop_commands": [list(command) for command in stop_commands],
            }
        )
        answer = self._wait(lambda: self._started.get(launch), timeout_s)
        if answer is None:
            raise self._lost(f"the supervisor did not start {argv[0]}")
        if answer["event"] == "failed":
            if self._stopping:
                raise self._broken_off()
            raise LauncherFailed(
                f"{argv[0]} could not be run",
                why=answer["error"],
                hint="check --ddtree-python, --ddtree-launch-prefix and PATH",
                log_path=log,
            )
        return int(answer["pid"])

    def exit_code(self, launch: str) -> int | None:
        """The exit code of a main process that has ended (negative: signal), None while it lives."""
        return self._exits.get(launch)

    def wait_exit(self, launch: str, timeout_s: float) -> int | None:
        """Like `exit_code`, after waiting for it that long."""
        return self._wait(lambda: self._exits.get(launch), timeout_s)

    def stop(self, launch: str, grace_s: float) -> Stopped:
        """SIGTERM, `grace_s` seconds, SIGKILL; returns when nothing of it is left or it cannot be removed."""
        with contextlib.suppress(ServerError):
            self._send({"op": "stop", "id": launch, "grace_s": grace_s})
        result = self._wait(lambda: self._stopped.get(launch), grace_s + 30.0)
        return result if result is not None else self._sweep(launch)

    def close(self, timeout_s: float = 30.0) -> list[tuple[int, str]]:
        """Stop everything and end the supervisor; returns what is still there."""
        with contextlib.suppress(ServerError):
            self._send({"op": "quit"})
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join(5.0)
        with contextlib.suppress(OSError):
            self._control.close()
        with contextlib.suppress(OSError):
            # Who was broken off in here closes once more; by then the number may be another file's.
            alarm, self._alarm_w = self._alarm_w, -1
            os.close(alarm)
        return [left for stopped in self._stopped.values() for left in stopped.left] + list(
            self._sweep(None).left
        )

    def _send(self, message: dict[str, Any]) -> None:
        data = json.dumps(message).encode() + b"\n"
        try:
            with self._write_lock:
                self._control.sendall(data)
        except OSError as error:
            raise self._lost("the supervisor process is gone") from error

    def _lost(self, what: str) -> ServerError:
        # Its last words may say that an alarm is why it is gone.
        self._reader.join(5.0)
        if self._stopping:
            return self._broken_off()
        tail = self.log_path.read_text(errors="replace")[-2000:] if self.log_path.exists() else ""
        return ServerError(
            what,
            hint="it must not be killed: it stops the servers when pytest ends",
            log_path=self.log_path,
            log_tail=tail,
        )

    def _broken_off(self) -> PoolClosed:
        return PoolClosed("the start was broken off: the servers are being stopped", log_path=self.log_path)

    def _wait(self, look: Callable[[], _T | None], timeout_s: float) -> _T | None:
        deadline = time.monotonic() + timeout_s
        with self._news:
            while (found := look()) is None:
                left = deadline - time.monotonic()
                if left <= 0 or self._gone:
                    return look()
                self._news.wait(min(left, 0.5))
        return found

    def _read(self) -> None:
        buffer = b""
        while True:
            try:
                data = self._control.recv(1 << 16)
            except OSError:
                data = b""
            if not data:
                break
            *lines, buffer = (buffer + data).split(b"\n")
            for line in lines:
                event = json.loads(line)
                self._note(event)
                if event["event"] == "stopping" and event["signal"]:
                    wakeup.pass_on(self._alarm_w)
        with self._news:
            self._gone = True
            self._news.notify_all()

    def _note(self, event: dict[str, Any]) -> None:
        with self._news:
            match event["event"]:
                case "started" | "failed":
                    self._started[event["id"]] = event
                case "exit":
                    self._exits[event["id"]] = event["code"]
                case "stopped":
                    left = tuple((int(pid), str(command)) for pid, command in event["left"])
                    self._stopped[event["id"]] = Stopped(
                        event["code"], tuple(event["killed"]), left, event["seconds"], tuple(event["pids"])
                    )
                case "stopping":
                    self._stopping = True
            self._news.notify_all()

    def _sweep(self, launch: str | None) -> Stopped:
        """The supervisor is gone (somebody killed it): remove by marker what it leaves, all launches for None."""
        began = time.monotonic()
        code = self._exits.get(launch) if launch else None
        killed: dict[int, None] = {}
        while True:
            found = [
                process
                for process in proc.table().values()
                if process.alive
                and process.pid != self._process.pid
                and _is_of(proc.marker(process.pid), self.run_id, launch)
            ]
            if not found or time.monotonic() - began > 5.0:
                left = tuple((process.pid, proc.command(process.pid)) for process in found)
                return Stopped(code, tuple(killed), left, time.monotonic() - began, tuple(killed))
            proc.kill_all(found)
            killed.update(dict.fromkeys(process.pid for process in found))
            time.sleep(0.05)


def _is_of(marker: str | None, run_id: str, launch: str | None) -> bool:
    run, _, named = (marker or "").partition("/")
    return run == run_id and (launch is None or named == launch)
