"""The processes of one server under the supervisor: one mostly, or one a node."""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pytest_ddtree.errors import writing
from pytest_ddtree.servers import secrets
from pytest_ddtree.servers.argv import CommandLine
from pytest_ddtree.servers.backend import Order
from pytest_ddtree.servers.supervise import Supervisor


@dataclass(frozen=True, slots=True)
class Nodes:
    """The processes of one server; when one of them ends, the server has ended."""

    supervisor: Supervisor
    launches: tuple[str, ...]

    def exit_code(self) -> int | None:
        return next(
            (code for launch in self.launches if (code := self.supervisor.exit_code(launch)) is not None),
            None,
        )

    def wait_exit(self, seconds: float) -> int | None:
        code = self.supervisor.wait_exit(self.launches[0], seconds)
        return code if code is not None else self.exit_code()


def launch_one(supervisor: Supervisor, order: Order, launch: str, line: CommandLine) -> int:
    log = order.log_path if launch == order.launch else order.log_path.with_name(f"{launch}.log")
    write_head(log, line.argv, line.env)
    environment = {**os.environ, **line.env}
    return supervisor.start(
        launch, line.argv, env=environment, cwd=line.cwd, log=log, stop_commands=line.stop_commands
    )


def write_head(log: Path, argv: Sequence[str], env: Mapping[str, str]) -> None:
    """Begin a log with what is run, so that it stands for itself. Secrets are left out."""
    log.parent.mkdir(parents=True, exist_ok=True)
    environment = " ".join(f"{key}={shlex.quote(value)}" for key, value in secrets.variables(env).items())
    with writing(log):
        log.write_text(f"$ {environment} {shlex.join(secrets.arguments(argv))}\n")


def in_url(host: str) -> str:
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"[{host}]" if ":" in host else host


def until(true: Callable[[], bool], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while not true():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True
