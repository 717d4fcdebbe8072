"""Errors of servers. Each text is complete: what happened, the root cause, the log's path and end, what to do.

ServerError
├── ConfigNotSupported      the build cannot express or refuses the config
├── SetupRefused            what the options name is not there, or does not take what they say
├── FakedServer             the server fakes its results and is not judged
├── StartFailed
│   ├── StartTimeout        not ready within the deadline
│   ├── DiedDuringStart     the process ended before it was ready
│   ├── PortInUse           another process holds the port
│   ├── LauncherFailed      the program to run could not be started at all
│   └── ForeignServer       the server that answers is not the one that was started
├── ServerDied              the process ended after it was ready
├── ServerHangs             alive, but it no longer answers
├── ConfigEnded             died or hung twice: no further start
├── StopFailed              something of ours survived, or still holds the port or the GPU
├── GpuBusy                 another run holds the GPU's lock
└── PoolClosed              a server was asked for after the stop began
"""

from __future__ import annotations

from pathlib import Path

from pytest_ddtree.errors import Infrastructure

LOG_ENDS = "the log ends:"
"""The line before the last lines of a log in the text of an error."""


class ServerError(Infrastructure):
    """Infrastructure failed. `str()` is the whole text for people; the parts are attributes.

    `what` happened, `why` (the root-cause line, None if unknown), `hint` (what to do), `log_path` and the log's last lines.
    """

    def __init__(
        self,
        what: str,
        *,
        why: str | None = None,
        hint: str | None = None,
        log_path: Path | None = None,
        log_tail: str = "",
    ) -> None:
        super().__init__(what)
        self.what = what
        self.why = why
        self.hint = hint
        self.log_path = log_path
        self.log_tail = log_tail

    def __str__(self) -> str:
        parts = [self.what]
        if self.why:
            parts.append(f"cause: {self.why}")
        if self.hint:
            parts.append(f"what to do: {self.hint}")
        if self.log_path is not None:
            parts.append(f"log: {self.log_path}")
        if self.log_tail:
            parts.append(f"{LOG_ENDS}\n" + "\n".join(f"  | {line}" for line in self.log_tail.splitlines()))
        return "\n".join(parts)

    def __reduce__(self) -> tuple[object, ...]:
        # xdist and result stores pickle exceptions; keyword-only arguments need help there.
        return _rebuild, (type(self), self.what, self.why, self.hint, self.log_path, self.log_tail)


def _rebuild(
    kind: type[ServerError],
    what: str,
    why: str | None,
    hint: str | None,
    log_path: Path | None,
    log_tail: str,
) -> ServerError:
    return kind(what, why=why, hint=hint, log_path=log_path, log_tail=log_tail)


class ConfigNotSupported(ServerError):
    """The build cannot express the config; raised before anything starts."""


class SetupRefused(ServerError):
    """What the options name is not there, or refuses what they say; found before anything starts, and true for every config."""


class FakedServer(ServerError):
    """Acceptance is simulated or relaxed, or inputs are cut silently: nothing that it answers can be judged."""


class StartFailed(ServerError):
    """The server did not become ready."""


class StartTimeout(StartFailed):
    """Not ready within the one deadline that covers loading, capture, warm-up and the checked generation."""


class DiedDuringStart(StartFailed):
    """The process ended before it was ready."""


class PortInUse(StartFailed):
    """Another process holds the port."""


class LauncherFailed(StartFailed):
    """The program could not be run at all (not found, not executable)."""


class ForeignServer(StartFailed):
    """What answers on the port is not the server that was started."""


class ServerDied(ServerError):
    """The process ended after it was ready."""


class ServerHangs(ServerError):
    """The process lives but does not answer."""


class ConfigEnded(ServerError):
    """The server of this config failed twice after it was ready; it is not started again."""


class StopFailed(ServerError):
    """After the stop something of ours is still there."""


class GpuBusy(ServerError):
    """Another run holds the lock of this GPU."""


class PoolClosed(ServerError):
    """The pool is stopping or has stopped."""
