"""Servers that are processes of this host: the embedded one and a local SGLang."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from secrets import token_hex

from pytest_ddtree.dialects import draft, faked, registry
from pytest_ddtree.dialects.base import BaselineKind, Dialect, DialectError
from pytest_ddtree.dialects.build import Build
from pytest_ddtree.grid import Config
from pytest_ddtree.servers import chosen, gpu, logs, ports, secrets, stale
from pytest_ddtree.servers.argv import CommandLine, command_line, environment, launch_request
from pytest_ddtree.servers.backend import Order
from pytest_ddtree.servers.errors import ConfigNotSupported, FakedServer, PortInUse, StopFailed
from pytest_ddtree.servers.gpu import Gpus
from pytest_ddtree.servers.handle import Running
from pytest_ddtree.servers.http import Http, Unreachable
from pytest_ddtree.servers.lock import HostLocks
from pytest_ddtree.servers.probe import Probed, probe
from pytest_ddtree.servers.readiness import Expectation, Ready, wait_ready
from pytest_ddtree.servers.settings import ServerSettings
from pytest_ddtree.servers.supervise import Supervisor

_GPU_S = 60.0
"""How long the driver may take to release the memory of processes that have ended."""
_WEIGHTS = Path(__file__).resolve().parents[1] / "reference" / "weights"
_OWN_TARGET = str(_WEIGHTS / "target")
_OWN_DRAFT = str(_WEIGHTS / "draft")
_PORT_S = 10.0
"""How long a port may stay taken after everything of ours is gone."""


class LocalBackend:
    """Starts servers under a supervisor process, which is started with the first of them."""

    def __init__(
        self,
        settings: ServerSettings,
        dialect: Dialect | None = None,
        build: Build | None = None,
        *,
        progress: Callable[[str], None] = lambda text: None,
        gpus: Gpus | None = None,
    ) -> None:
        """Without `dialect` or `build` the build is probed at the first start; `gpus` stands in for NVML."""
        self._settings = settings
        self._progress = progress
        self._gpus = gpus
        self._locks: HostLocks | None = None
        self._given = dialect
        self._probed: Probed | None = None if build is None else Probed(build, None)
        self._draft = draft.read(
            settings.draft_model or (_OWN_DRAFT if settings.kind == "reference" else None)
        )
        self._depth = draft.depth(settings.model or (_OWN_TARGET if settings.kind == "reference" else None))
        self._supervisor: Supervisor | None = None

    gpus: tuple[str, ...] = ()
    """Identities of the GPUs that the servers use, known after the first start."""

    @property
    def dialect(self) -> Dialect:
        """How this build spells configs; probes it once unless it was given."""
        if self._given is None:
            self._given = chosen.dialect(self._settings) or registry.of_build(self.probed.build)
        return self._given

    @property
    def probed(self) -> Probed:
        """The build; probed once, under the supervisor."""
        if self._probed is None:
            if self._settings.kind == "reference":
                self._probed = Probed(Build(), None)
            else:
                self._probed = probe(
                    self._settings,
                    self._supervise(),
                    {**environment(self._settings), **self._settings.env},
                )
        return self._probed

    def same_flags(self, config: Config) -> bool:
        matched, best = (self._command(config, variant, 1, "name") for variant in ("matched", "best"))
        return matched == best

    def start(self, order: Order) -> Running:
        request = launch_request(self._settings, self.probed.build, order.variant, self._draft)
        if (why := self.dialect.unsupported(order.config, request)) is not None:
            raise ConfigNotSupported(
                f"{order.config.id} cannot run on this build (dialect {self.dialect.name})",
                why=why,
                hint="leave this value out of the grid, or choose another build or --ddtree-dialect",
            )
        served_name = f"ddtree-{order.config.id}-{token_hex(4)}"
        hold = self._hold_port()
        try:
            line = self._command(order.config, order.variant, hold.port, served_name)
            _refuse_fakes(order, faked.before_start(line.argv, {**os.environ, **line.env}))
            _head(order, line)
            supervisor = self._supervise()
            pid = supervisor.start(
                order.launch,
                line.argv,
                env={**os.environ, **line.env},
                cwd=line.cwd,
                log=order.log_path,
                stop_commands=line.stop_commands,
            )
            url = f"http://{_in_url(self._settings.host)}:{hold.port}"
            try:
                ready = self._wait(order, supervisor, url, served_name, hold.release)
                _refuse_fakes(order, faked.after_start(ready.info))
            except BaseException:
                # Also for KeyboardInterrupt: whoever asked for this server never gets a handle to stop it with.
                supervisor.stop(order.launch, min(5.0, self._settings.stop_timeout_s))
                raise
        finally:
            hold.release()
        return Running(
            launch=order.launch,
            url=url,
            start_no=order.number,
            asked=self.dialect.asked(order.config, request),
            effective=ready.effective,
            info=ready.info,
            exit_code=_exit_code(supervisor, order.launch),
            log_path=order.log_path,
            pid=pid,
            served_name=served_name,
            argv=secrets.arguments(line.argv),
            env=secrets.variables(line.env),
            warnings=(
                *ready.effective.warnings,
                *draft.warnings(order.config, self._draft, target_depth=self._depth),
            ),
            idle=ready.idle,
        )

    def stop(self, running: Running) -> None:
        if self._supervisor is None:
            return
        if running.exit_code() is None:
            with suppress(Unreachable), Http(running.url, api_key=self._settings.api_key) as http:
                http.post("/abort_request", {"abort_all": True}, timeout_s=3.0)
        stopped = self._supervisor.stop(running.launch, self._settings.stop_timeout_s)
        text = logs.tail(logs.read(running.log_path))
        if stopped.left:
            raise StopFailed(
                f"{running.launch} is stopped, but {len(stopped.left)} of its processes cannot be killed",
                why=", ".join(f"{pid} ({command})" for pid, command in stopped.left),
                hint="a process that even SIGKILL does not end hangs in the kernel, mostly in the GPU driver: see dmesg",
                log_path=running.log_path,
                log_tail=text,
            )
        port = int(running.url.rpartition(":")[2])
        if not _until(lambda: ports.free(self._settings.host, port), _PORT_S):
            raise StopFailed(
                f"{running.launch} is stopped, but port {port} is still taken",
                why=f"it is held by {ports.holder(port) or 'a process that is not visible'}",
                log_path=running.log_path,
            )
        self._await_gpu(running, stopped.pids)

    def alarm(self) -> None:
        if self._supervisor is not None:
            self._supervisor.alarm()

    @property
    def alarm_fd(self) -> int | None:
        """File descriptor on which a byte raises the alarm; None before the first start."""
        return None if self._supervisor is None else self._supervisor.alarm_fd

    def close(self) -> list[str]:
        if self._supervisor is None:
            return []
        left = self._supervisor.close()
        self._supervisor = None
        if self._locks is not None:
            self._locks.release()
        return [f"process {pid} ({command})" for pid, command in left]

    def _supervise(self) -> Supervisor:
        if self._supervisor is None:
            self._clear_stale()
            self._locks = self._lock()
            self._supervisor = Supervisor(self._settings.run_dir, keep_fds=self._locks.descriptors)
        return self._supervisor

    def _clear_stale(self) -> None:
        """A server of a run whose pytest is gone would hold the GPU or disturb what is measured."""
        found = stale.find()
        for leftover in found:
            self._progress(f"left behind by an earlier run, being removed: {leftover.describe()}")
        for text in stale.remove(found):
            self._progress(f"could not be removed: {text}")

    def _lock(self) -> HostLocks:
        settings = self._settings
        names = [settings.lock_name] if settings.lock_name else []
        if settings.kind == "sglang":
            if self._gpus is None:
                self._gpus = gpu.load()
            if self._gpus is None:
                self._progress(
                    "NVML is not to be had (nvidia-ml-py or the driver is missing): that the GPU is free after a stop cannot be confirmed"
                )
            self.gpus = gpu.visible(settings.gpus, self._gpus)
            names += [f"gpu-{identity}" for identity in self.gpus]
        return HostLocks(names, timeout_s=settings.lock_timeout_s, progress=self._progress)

    def _await_gpu(self, running: Running, pids: tuple[int, ...]) -> None:
        gpus = self._gpus
        if gpus is None or _until(lambda: not gpus.holders() & set(pids), _GPU_S):
            return
        held = sorted(gpus.holders() & set(pids))
        raise StopFailed(
            f"{running.launch} is stopped, but its processes {', '.join(map(str, held))} still hold GPU memory after {_GPU_S:g} s",
            hint="the driver is still tearing them down or hangs: see nvidia-smi and dmesg",
            log_path=running.log_path,
        )

    def _command(self, config: Config, variant: BaselineKind, port: int, served_name: str) -> CommandLine:
        try:
            request = launch_request(self._settings, self.probed.build, variant, self._draft)
            launch = self.dialect.arguments(config, request)
        except DialectError as error:
            raise ConfigNotSupported(f"{config.id} cannot run on this build", why=str(error)) from error
        return command_line(
            self._settings, config, launch, port=port, served_name=served_name, launch_name=served_name
        )

    def _hold_port(self) -> ports.PortHold:
        settings = self._settings
        try:
            return ports.PortHold(settings.host, settings.port or 0)
        except OSError as error:
            holder = ports.holder(settings.port) if settings.port else None
            raise PortInUse(
                f"port {settings.port or 'of the server'} on {settings.host} cannot be had",
                why=f"it is held by {holder}" if holder else str(error),
                hint="stop that process, or leave the port to the pool (`pytest-ddtree reap` removes what an earlier run left)",
            ) from error

    def _wait(
        self,
        order: Order,
        supervisor: Supervisor,
        url: str,
        served_name: str,
        on_listening: Callable[[], None],
    ) -> Ready:
        return wait_ready(
            Expectation(
                title=order.title,
                url=url,
                dialect=lambda info: self.dialect,
                deadline=order.deadline,
                budget_s=order.budget_s,
                served_name=served_name,
                log_path=order.log_path,
                api_key=self._settings.api_key,
            ),
            exit_code=lambda seconds: supervisor.wait_exit(order.launch, seconds),
            closing=lambda: supervisor.stopping or order.closing(),
            progress=order.progress,
            on_listening=on_listening,
        )


def _refuse_fakes(order: Order, signs: list[str]) -> None:
    if signs:
        raise FakedServer(
            f"{order.title} is not judged: what it answers would not be its own",
            why="; ".join(signs),
            hint="unset the variable or drop the argument",
        )


def _exit_code(supervisor: Supervisor, launch: str) -> Callable[[], int | None]:
    return lambda: supervisor.exit_code(launch)


def _head(order: Order, line: CommandLine) -> None:
    """The log begins with what was run, so that it stands for itself."""
    import shlex

    order.log_path.parent.mkdir(parents=True, exist_ok=True)
    environment = " ".join(
        f"{key}={shlex.quote(value)}" for key, value in secrets.variables(line.env).items()
    )
    order.log_path.write_text(f"$ {environment} {shlex.join(secrets.arguments(line.argv))}\n")


def _in_url(host: str) -> str:
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"[{host}]" if ":" in host else host


def _until(true: Callable[[], bool], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while not true():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True
