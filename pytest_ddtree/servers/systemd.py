"""A server that is a systemd unit, here or over ssh: a drop-in under /run for each config, and the unit as it was afterwards.

Three things bring the unit back: `close`; the supervisor, when pytest is killed; and a lease on the unit's own host (a transient
timer, renewed while this process lives), when the host or the link is lost.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from secrets import token_hex

from pytest_ddtree.dialects import faked, registry
from pytest_ddtree.dialects.base import (
    BaselineKind,
    Dialect,
    DialectError,
    Launch,
    LaunchRequest,
    given,
)
from pytest_ddtree.dialects.build import Build, flags_of_help
from pytest_ddtree.errors import writing
from pytest_ddtree.grid import Config
from pytest_ddtree.servers import chosen, logs, ports, secrets, unitfile
from pytest_ddtree.servers.argv import launch_request
from pytest_ddtree.servers.backend import Order
from pytest_ddtree.servers.errors import (
    ConfigNotSupported,
    ServerError,
    SetupRefused,
    StartFailed,
)
from pytest_ddtree.servers.fakes import refuse_fakes
from pytest_ddtree.servers.handle import Running
from pytest_ddtree.servers.host import Host
from pytest_ddtree.servers.lease import LEASE_S, Lease
from pytest_ddtree.servers.readiness import Expectation, Ready, wait_ready
from pytest_ddtree.servers.settings import ServerSettings
from pytest_ddtree.servers.supervise import Supervisor
from pytest_ddtree.servers.unit import ROOT, Unit

_POLL_S = 1.0


class SystemdBackend:
    """One unit, one config at a time."""

    def __init__(
        self,
        settings: ServerSettings,
        *,
        progress: Callable[[str], None] = lambda text: None,
        unit_root: str = ROOT,
        lease_s: float = LEASE_S,
    ) -> None:
        """Raises ServerError when no unit is named."""
        if not settings.unit:
            raise ServerError(
                "--ddtree-server systemd needs the name of a unit", hint="give it with --ddtree-unit"
            )
        self._settings = settings
        self._progress = progress
        self._unit = Unit(Host(settings.ssh, settings.sudo), settings.unit, unit_root)
        self._token = token_hex(4)
        self._lease = Lease(self._unit, self._token, lease_s)
        self._supervisor: Supervisor | None = None
        self._original = ""
        self._command: unitfile.Command | None = None
        self._dialect: Dialect | None = None
        self._build = Build()
        self._state: tuple[float, int | None] = (0.0, None)
        self._broken: ServerError | None = None

    def check(self, configs: Sequence[Config]) -> None:
        """Refuse a dialect that does not exist and a unit that cannot be read, starts nothing or does not say where it answers."""
        chosen.dialect(self._settings)
        _, command = self._read()
        for config in configs:
            self._unit.address((*command.plain, *self._user(config, "matched")))

    def same_flags(self, config: Config) -> bool:
        self._prepare()
        return self._words(config, "matched") == self._words(config, "best")

    def unsupported(self, config: Config) -> str | None:
        self._prepare()
        return self.dialect.unsupported(config, self._request(config, "matched"))

    def start(self, order: Order) -> Running:
        supervisor = self._prepare()
        launch = self._launch(order.config, order.variant)
        served_name = f"ddtree-{order.config.id}-{token_hex(4)}"
        args = [*launch.args, *self._user(order.config, order.variant), "--served-model-name", served_name]
        env = {**launch.env, **self._settings.env}
        command = self._trimmed()
        words = (*command.plain, *args)
        host, port = self._unit.address(words)
        refuse_fakes(order.title, faked.before_start(words, env))
        order.log_path.parent.mkdir(parents=True, exist_ok=True)
        with writing(order.log_path):
            order.log_path.write_text(f"$ {shlex.join(secrets.arguments(words))}\n")
        began = self._unit.now()
        self._lease.hold()
        self._unit.write(unitfile.drop_in(command, args, env))
        try:
            self._unit.restart(order.budget_s)
            self._state = (0.0, None)
            url, hold = self._reach(supervisor, order.launch, host, port)
            try:
                ready = self._wait(order, url, served_name, began)
            finally:
                if hold is not None:
                    hold.release()
            refuse_fakes(order.title, faked.after_start(ready.info))
        except BaseException:
            # Each whether or not the one before it went well.
            with contextlib.suppress(ServerError):
                self._fetch_log(order.log_path, began)
            with contextlib.suppress(ServerError):
                self._unit.stop()
            supervisor.stop(f"{order.launch}-tunnel", 1.0)
            raise
        request = self._request(order.config, order.variant)
        return Running(
            launch=order.launch,
            url=url,
            start_no=order.number,
            asked=self.dialect.asked(order.config, request),
            effective=ready.effective,
            info=ready.info,
            dialect=self.dialect,
            exit_code=self._exit_code,
            refresh_log=lambda: self._fetch_log(order.log_path, began),
            log_path=order.log_path,
            argv=secrets.arguments(words),
            env=secrets.variables(env),
            warnings=ready.effective.warnings,
            idle=ready.idle,
        )

    def stop(self, running: Running) -> None:
        self._unit.stop(self._settings.stop_timeout_s + 60.0)
        if self._supervisor is not None and self._settings.ssh:
            self._supervisor.stop(f"{running.launch}-tunnel", 1.0)

    def alarm(self) -> None:
        if self._supervisor is not None:
            self._supervisor.alarm()

    @property
    def alarm_fd(self) -> int | None:
        """File descriptor on which a byte raises the alarm; None before the first start."""
        return None if self._supervisor is None else self._supervisor.alarm_fd

    @property
    def dialect(self) -> Dialect:
        """How the unit's build spells configs."""
        assert self._dialect is not None
        return self._dialect

    def close(self) -> list[str]:
        if self._supervisor is None:
            return []
        self._lease.end()
        left: list[str] = []
        where = f"unit {self._unit.name} on {self._unit.host.title}"
        try:
            done = self._unit.host.run(self._lease.restore_script(), timeout_s=120.0)
            if not done.ok:
                left.append(f"{where}: {done.err.strip()[:300]}")
            elif (now := self._unit.shown()) != self._original:
                left.append(f"{where} is not as it was: {unitfile.first_difference(self._original, now)}")
        except ServerError as error:
            left.append(f"{where}: {error} (its lease restores it within {self._lease.seconds:g} s)")
        left += [f"process {pid} ({command})" for pid, command in self._supervisor.close()]
        self._supervisor = None
        return left

    def _prepare(self) -> Supervisor:
        """Read the unit once, find out its dialect, and set a guard that restores it when pytest is killed."""
        if self._supervisor is not None:
            return self._supervisor
        if self._broken is not None:
            raise self._broken
        try:
            return self._take_over()
        except ServerError as error:
            # Each test would wait for the same host again.
            self._broken = error
            raise

    def _read(self) -> tuple[str, unitfile.Command]:
        """The unit as systemd has it, and its command. Raises SetupRefused, ServerError for a host that does not answer."""
        text = self._unit.read()
        command = unitfile.exec_start(text)
        if command is None:
            raise SetupRefused(
                f"unit {self._unit.name} has no ExecStart= line in [Service]",
                hint="it must be a service that starts SGLang",
            )
        return text, command

    def _take_over(self) -> Supervisor:
        self._original, self._command = self._read()
        self._lease.was_active = self._unit.active()
        self._build = self._probe(self._command)
        self._dialect = self._choose()
        self._supervisor = Supervisor(self._settings.run_dir)
        self._supervisor.start(
            f"unit-{self._token}",
            [sys.executable, "-c", "import signal; signal.pause()"],
            env=dict(os.environ),
            cwd=Path.cwd(),
            log=self._settings.run_dir / "logs" / "unit-guard.log",
            stop_commands=[self._unit.host.argv(self._lease.restore_script())],
        )
        return self._supervisor

    def _choose(self) -> Dialect:
        return chosen.dialect(self._settings) or registry.of_build(self._build)

    def _probe(self, command: unitfile.Command) -> Build:
        env, folder = unitfile.surroundings(self._original)
        words = [
            "env",
            *(f"{name}={text}" for name, text in env.items()),
            *unitfile.program(command),
            "--help",
        ]
        where = f"cd {shlex.quote(folder)} && " if folder else ""
        done = self._unit.host.run(where + shlex.join(words), timeout_s=300.0)
        flags = flags_of_help(done.out)
        if "--model-path" not in flags and not self._settings.dialect:
            raise StartFailed(
                f"the build of unit {self._unit.name} does not list its flags",
                why=logs.root_cause(done.out + done.err),
                hint="name its dialect with --ddtree-dialect",
                log_tail=logs.tail(done.out + done.err, 20),
            )
        return Build(flags)

    def _launch(self, config: Config, variant: BaselineKind) -> Launch:
        request = self._request(config, variant)
        why = self.dialect.unsupported(config, request)
        if why is None:
            try:
                return self.dialect.arguments(config, request)
            except DialectError as error:
                why = str(error)
        raise ConfigNotSupported(
            f"{config.id} cannot run on unit {self._unit.name} (dialect {self.dialect.name})", why=why
        )

    def _request(self, config: Config, variant: BaselineKind) -> LaunchRequest:
        """The settings, with the unit's own arguments among those of the user: no dialect sets them again."""
        arguments = (*self._trimmed().plain, *self._settings.server_args)
        return replace(
            launch_request(self._settings.of(config, variant), self._build, variant), server_args=arguments
        )

    def _words(self, config: Config, variant: BaselineKind) -> tuple[str, ...]:
        return (*self._launch(config, variant).args, *self._user(config, variant))

    def _user(self, config: Config, variant: BaselineKind) -> tuple[str, ...]:
        settings = self._settings.of(config, variant)
        user = (
            *settings.server_args,
            *(settings.spec_args if config.speculative else settings.baseline_args),
        )
        seed = (
            ()
            if settings.seed is None or given(user, "--random-seed")
            else ("--random-seed", str(settings.seed))
        )
        return (*seed, *user)

    def _trimmed(self) -> unitfile.Command:
        """The unit's own command line without what a config sets."""
        assert self._command is not None
        ours = ("--served-model-name", *(("--random-seed",) if self._settings.seed is not None else ()))
        return unitfile.without(self._command, ours)

    def _reach(
        self, supervisor: Supervisor, launch: str, host: str, port: int
    ) -> tuple[str, ports.PortHold | None]:
        """The URL of what listens there, and the hold on the tunnel's port, which ssh listens on beside it."""
        if not self._settings.ssh:
            return f"http://{host}:{port}", None
        hold = ports.PortHold("127.0.0.1")
        try:
            supervisor.start(
                f"{launch}-tunnel",
                self._unit.host.tunnel(hold.port, host, port),
                env=dict(os.environ),
                cwd=Path.cwd(),
                log=self._settings.run_dir / "logs" / f"{launch}-tunnel.log",
            )
        except BaseException:
            hold.release()
            raise
        return f"http://127.0.0.1:{hold.port}", hold

    def _wait(self, order: Order, url: str, served_name: str, began: int) -> Ready:
        expectation = Expectation(
            title=order.title,
            url=url,
            dialect=lambda info: self.dialect,
            deadline=order.deadline,
            budget_s=order.budget_s,
            served_name=served_name,
            log_path=order.log_path,
            api_key=self._settings.api_key,
            # The old process may answer for a while after the restart command returned.
            patient=True,
            refresh_log=lambda: self._fetch_log(order.log_path, began),
        )
        return wait_ready(
            expectation,
            exit_code=self._wait_exit,
            closing=lambda: order.closing() or (self._supervisor is not None and self._supervisor.stopping),
            progress=order.progress,
        )

    def _wait_exit(self, seconds: float) -> int | None:
        time.sleep(seconds)
        return self._exit_code()

    def _exit_code(self) -> int | None:
        """The unit's exit status once it has ended; asked at most once a second, because over ssh each question costs."""
        asked, code = self._state
        if code is not None or time.monotonic() - asked < _POLL_S:
            return code
        try:
            code = self._unit.exit_code()
        except ServerError:
            return None
        self._state = (time.monotonic(), code)
        return code

    def _fetch_log(self, path: Path, began: int) -> None:
        # Only what is new: a long log over ssh costs each time, and a reader knows the file by what it has read of it.
        known = path.read_bytes().count(b"\n")
        if new := self._unit.journal(began, known):
            with writing(path), path.open("a") as log:
                log.write(new)
