"""The checker's handle on one zygote: starting it, starting runs in it, learning how they ended."""

from __future__ import annotations

import array
import contextlib
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from .errors import SandboxBrokenError, SandboxUnavailableError
from .inner.codec import CodecError, decode
from .inner.zygote import ENDED, FAILED, KILL, START
from .limits import Limits

Mode = Literal["strict", "off"]

_START_S: Final = 60.0
_END_S: Final = 30.0
_INNER: Final = Path(__file__).with_name("inner")
# The folder becomes a package of its own name, so that the interpreter imports nothing else of ours.
_BOOT: Final = """
import sys, types
folder, name = sys.argv[1], "ddtree_inner"
package = types.ModuleType(name)
package.__path__ = [folder]
sys.modules[name] = package
from ddtree_inner.zygote import main
main(int(sys.argv[2]), int(sys.argv[3]), sys.argv[4], sys.argv[5], sys.argv[6:])
"""


def interpreter() -> str:
    """The real interpreter behind a virtual environment or a shim."""
    return os.path.realpath(getattr(sys, "_base_executable", None) or sys.executable)


@dataclass(frozen=True, slots=True)
class RunEnd:
    """How a child ended: its wait status and CPU seconds."""

    status: int
    cpu_s: float


class ZygoteProcess:
    """One zygote and the control socket to it.

    Not thread-safe: whoever leases it is alone with it. Must be made by a thread that outlives it, because it
    dies with the thread that started it (prctl(2), PR_SET_PDEATHSIG).
    """

    def __init__(self, mode: Mode, without: Sequence[str] = ()) -> None:
        self._runs = 0
        self._ended: dict[int, RunEnd] = {}
        # Closed and removed in _discard, or here where one of them cannot be had.
        with contextlib.ExitStack() as made:
            try:
                self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
                made.callback(self._control.close)
                made.callback(theirs.close)
                self._folder = tempfile.mkdtemp(prefix="ddtree-sandbox-")
                made.callback(shutil.rmtree, self._folder, ignore_errors=True)
                self._stderr = made.enter_context(tempfile.TemporaryFile())
            except OSError as error:
                raise SandboxUnavailableError(
                    f"the sandbox has no place for its files: {error}. Make room there, or name another folder in TMPDIR"
                ) from error
            made.pop_all()
        try:
            self._process = subprocess.Popen(
                # -P -s with an environment of two fixed variables is -I, but for the hash seed: the order of
                # sets must not change a verdict from run to run.
                [interpreter(), "-S", "-s", "-P", "-B", "-X", "utf8", "-c", _BOOT,
                 str(_INNER), str(theirs.fileno()), str(os.getpid()), self._folder, mode, *without],
                env={"PYTHONHASHSEED": "0", "TZ": "UTC"},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=self._stderr,
                cwd="/",
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            self._discard()
            raise SandboxUnavailableError(f"{interpreter()} does not start: {error}") from error
        finally:
            theirs.close()
        try:
            self.hello = self._greet()
        except BaseException:
            self.close()
            raise

    @property
    def pid(self) -> int:
        return self._process.pid

    def start(self, limits: Limits, cpu_total_s: int, descriptors: Sequence[int]) -> int:
        """Forks a child that gets the descriptors; returns the run's number."""
        self._runs = run = (self._runs + 1) & 0xFFFFFFFF
        order = START.pack(b"S", run, limits.memory_bytes, limits.stack_bytes, cpu_total_s)
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))]
        try:
            self._control.sendmsg([order], rights)
        except OSError as error:
            raise self._broken(str(error)) from error
        return run

    def kill(self, run: int) -> RunEnd:
        """Kills the run unless it has ended; returns how it ended, by itself where it was first."""
        with contextlib.suppress(OSError):
            self._control.send(KILL.pack(b"K", run))
        return self.wait(run)

    def wait(self, run: int) -> RunEnd:
        """How the run ended."""
        end = self.end_within(run, _END_S)
        if end is None:
            raise self._broken("a killed run does not end")
        return end

    def end_within(self, run: int, seconds: float) -> RunEnd | None:
        """How the run ended, or None when it has not ended in time."""
        deadline = time.monotonic() + seconds
        while run not in self._ended:
            packet = self._packet(deadline)
            if packet is None:
                return None
            self._note(packet)
        return self._ended.pop(run)

    def close(self) -> None:
        """Ends the zygote and with it every run. To be called once: afterwards its number may be another process's."""
        # The group: in mode "off" a solution can have started processes.
        with contextlib.suppress(OSError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._discard()

    def _discard(self) -> None:
        self._control.close()
        self._stderr.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _greet(self) -> dict[str, Any]:
        packet = self._packet(time.monotonic() + _START_S)
        if packet is None:
            raise self._broken("its process does not start")
        try:
            hello = decode(packet[1:])
        except CodecError as error:
            raise self._broken(f"no greeting: {error}") from error
        return dict(hello)

    def _note(self, packet: bytes) -> None:
        if packet[:1] == b"F":
            _, _, number = FAILED.unpack(packet)
            raise self._broken(f"the sandbox cannot fork: {os.strerror(number)}")
        _, run, status, user_s, system_s = ENDED.unpack(packet)
        self._ended[run] = RunEnd(status, user_s + system_s)

    def _packet(self, deadline: float) -> bytes | None:
        poller = select.poll()
        try:
            poller.register(self._control, select.POLLIN)
            if not poller.poll(max(0.0, deadline - time.monotonic()) * 1000):
                return None
            packet = self._control.recv(65536)
        except ValueError as error:
            raise SandboxBrokenError("the sandbox was closed during a run") from error
        except OSError as error:
            raise self._broken(str(error)) from error
        if not packet:
            raise self._broken("its process has died")
        return packet

    def _broken(self, why: str) -> SandboxBrokenError:
        if self._stderr.closed:
            return SandboxBrokenError("the sandbox was closed during a run")
        self._stderr.seek(0)
        tail = self._stderr.read()[-2000:].decode("utf-8", "replace").strip()
        return SandboxBrokenError(f"the sandbox broke: {why}" + (f"\n{tail}" if tail else ""))
