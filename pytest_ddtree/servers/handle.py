"""A stable handle on the server of one config; the process behind it may be replaced."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pytest_ddtree.dialects.base import BaselineKind, Dialect
from pytest_ddtree.dialects.effective import EffectiveConfig, Mismatch, Row, compare, table
from pytest_ddtree.grid import Config
from pytest_ddtree.servers import logs, secrets
from pytest_ddtree.servers.errors import ServerDied, ServerError, ServerHangs
from pytest_ddtree.servers.idle import Load


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """The process (or foreign server) behind a handle at this moment."""

    launch: str
    url: str
    start_no: int
    asked: EffectiveConfig
    effective: EffectiveConfig
    info: Mapping[str, Any]
    dialect: Dialect
    exit_code: Callable[[], int | None]
    """The exit code once the process has ended, None while it lives or where there is no process of ours."""
    log_path: Path | None = None
    pid: int | None = None
    argv: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    """What was added to the environment."""
    warnings: tuple[str, ...] = ()
    """What the build warned of, and where the config departs from what the drafter was trained for."""
    refresh_log: Callable[[], None] = lambda: None
    """Brings the log up to date where it is written on another host."""
    idle: Load | None = None
    """The load right after the start, its cache flushed."""


class Server:
    """The server of one config. The same object for the whole session, however often the process is replaced."""

    def __init__(self, config: Config, model: str, variant: BaselineKind = "matched") -> None:
        self.config = config
        self.variant: BaselineKind = variant
        self._model = model
        self._running: Running | None = None
        self._fault: str | None = None

    def __repr__(self) -> str:
        state = "stopped" if self._running is None else secrets.url(self._running.url)
        return f"<Server {self.config.id} {state}>"

    @property
    def running(self) -> bool:
        """Whether there is a process (or foreign server) behind the handle that has not ended as far as known."""
        return self._running is not None and self._fault is None and self._running.exit_code() is None

    @property
    def broken(self) -> bool:
        """Whether it died or was found at fault and has not been replaced yet; one that the pool stopped is not broken."""
        return self._running is not None and not self.running

    @property
    def current(self) -> Running:
        """What is behind the handle; raises ServerDied when nothing is."""
        if self._running is None:
            raise ServerDied(
                f"the server of {self.config.id} is not running", hint="ask the pool for it again"
            )
        return self._running

    @property
    def url(self) -> str:
        """Base URL, without a slash at the end; may change when the process is replaced."""
        return self.current.url

    @property
    def model(self) -> str:
        """The model as the server names it."""
        info = self._running.info if self._running is not None else {}
        return str(info.get("model_path") or self._model)

    @property
    def effective(self) -> EffectiveConfig:
        """The config in force, read back when the server became ready."""
        return self.current.effective

    @property
    def asked(self) -> EffectiveConfig:
        """The knobs that were asked for."""
        return self.current.asked

    @property
    def warnings(self) -> tuple[str, ...]:
        """What the build itself warned of, and where the config departs from what the drafter was trained for."""
        return self.current.warnings

    @property
    def dialect_name(self) -> str:
        """How the build behind the handle spells its flags."""
        return self.current.dialect.name

    @property
    def info(self) -> Mapping[str, Any]:
        """`/server_info` as it was when the server became ready."""
        return self.current.info

    @property
    def log_path(self) -> Path | None:
        """The log of the current process; None for a server that somebody else runs."""
        return self.current.log_path

    @property
    def start_no(self) -> int:
        """The how-manieth start of the pool this is, from 1."""
        return self.current.start_no

    @property
    def pid(self) -> int | None:
        """The main process; None for a server that somebody else runs."""
        return self.current.pid

    @property
    def argv(self) -> tuple[str, ...]:
        """The command line; empty for a server that somebody else runs."""
        return self.current.argv

    def mismatches(self, *, required: Iterable[str] = ()) -> list[Mismatch]:
        """Knobs that are not what was asked; those of `required` also when nobody confirms them."""
        return compare(self.asked, self.effective, required=required)

    def table(self) -> list[Row]:
        """The table asked / HTTP / log / behaviour."""
        return table(self.asked, self.effective)

    def refresh_log(self) -> None:
        """Bring the file of `log_path` up to date where it is written on another host; a lost link leaves it as it is."""
        if self._running is not None:
            with suppress(ServerError):
                self._running.refresh_log()

    def log_tail(self, n: int = logs.TAIL_LINES) -> str:
        """The last `n` lines of the log that say something; empty where there is no log."""
        return "" if self._running is None else logs.tail(logs.read(self._running.log_path), n)

    def check_alive(self) -> None:
        """Raise ServerDied or ServerHangs, with the root cause and the log's tail, unless the process lives. Sends nothing."""
        running = self.current
        code = running.exit_code()
        if code is not None or self._fault:
            self.refresh_log()
        text = logs.read(running.log_path) if code is not None or self._fault else ""
        if code is not None:
            raise ServerDied(
                f"the server of {self.config.id} ended while it was in use ({describe_end(code, text)})",
                why=logs.root_cause(text),
                log_path=running.log_path,
                log_tail=logs.tail(text),
            )
        if self._fault:
            raise ServerHangs(
                f"the server of {self.config.id} is out of order: {self._fault}",
                log_path=running.log_path,
                log_tail=logs.tail(text),
            )

    def _bind(self, running: Running | None) -> None:
        self._running = running
        self._fault = None

    def _condemn(self, why: str) -> None:
        self._fault = why


def describe_end(code: int, log: str) -> str:
    """`describe_exit` of a process with this log."""
    return describe_exit(code, explained=logs.classify(log) is not None)


def describe_exit(code: int, *, explained: bool = False) -> str:
    """`exit code 3`, or `killed by SIGKILL: often the kernel, for lack of memory`.

    Not where the log has `explained` it: SGLang kills its own processes that way when one of them fails.
    """
    import signal

    if code >= 0:
        return f"exit code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    remark = ": often the kernel, for lack of memory" if name == "SIGKILL" and not explained else ""
    return f"killed by {name}{remark}"
