"""Servers that are processes of this host: the embedded one and a local SGLang."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from secrets import token_hex
from typing import TypeVar

from pytest_ddtree.dialects import draft, faked, registry
from pytest_ddtree.dialects.base import BaselineKind, Dialect, DialectError
from pytest_ddtree.dialects.build import Build
from pytest_ddtree.grid import Config
from pytest_ddtree.servers import chosen, gpu, logs, ports, secrets, stale
from pytest_ddtree.servers.argv import (
    MODULES,
    CommandLine,
    address,
    command_lines,
    environment,
    launch_request,
)
from pytest_ddtree.servers.backend import Order
from pytest_ddtree.servers.errors import (
    ConfigNotSupported,
    PoolClosed,
    PortInUse,
    ServerError,
    SetupRefused,
    StopFailed,
)
from pytest_ddtree.servers.fakes import refuse_fakes
from pytest_ddtree.servers.gpu import Gpus
from pytest_ddtree.servers.handle import Running
from pytest_ddtree.servers.http import Http, Unreachable
from pytest_ddtree.servers.lock import HostLocks, SharedHold
from pytest_ddtree.servers.probe import Probed, probe
from pytest_ddtree.servers.processes import Nodes, in_url, launch_one, until
from pytest_ddtree.servers.readiness import Expectation, Ready, wait_ready
from pytest_ddtree.servers.settings import ServerSettings
from pytest_ddtree.servers.startable import check_embedded, check_programs
from pytest_ddtree.servers.supervise import Supervisor

_T = TypeVar("_T")

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
        self._locks: HostLocks | SharedHold | None = None
        self._given = dialect
        self._probed: Probed | None = None if build is None else Probed(build, None)
        self._draft = draft.read(
            settings.draft_model or (_OWN_DRAFT if settings.kind == "reference" else None)
        )
        self._depth = draft.depth(settings.model or (_OWN_TARGET if settings.kind == "reference" else None))
        self._broken: ServerError | None = None
        self._supervisor: Supervisor | None = None
        self._nodes: dict[str, tuple[str, ...]] = {}

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
            self._probed = (
                Probed(Build(), None) if self._settings.kind == "reference" else self._once(self._probe)
            )
        return self._probed

    def _probe(self) -> Probed:
        env = {**environment(self._settings), **self._settings.env}
        return probe(self._settings, self._supervise(), env, self._progress)

    def _once(self, make: Callable[[], _T]) -> _T:
        """What every start needs and none can have when it failed once: no config waits for it again."""
        if self._broken is not None:
            raise self._broken
        try:
            return make()
        except PoolClosed:
            raise
        except ServerError as error:
            self._broken = error
            raise

    def check(self, configs: Sequence[Config]) -> None:
        """Refuse an unknown dialect, launchers, interpreters and what the embedded server does not take."""
        chosen.dialect(self._settings)
        settings = self._settings
        check_programs(settings)
        why = draft.unfit(self._draft, self._depth) if settings.kind == "sglang" else None
        if why is not None and any(config.speculative for config in configs):
            raise SetupRefused(
                f"--ddtree-draft-model {settings.draft_model} does not fit --ddtree-model {settings.model}",
                why=why,
                hint="give the drafter that was trained for this target",
            )
        if settings.kind == "reference" and (named := self._to_be_asked(configs)):
            check_embedded(settings, named)

    def _to_be_asked(self, configs: Sequence[Config]) -> list[tuple[str, tuple[str, ...]]]:
        """Command lines with something of the user's in them: that of the baseline, and that of the first speculative config.

        What the grid and its axes ask for is judged config by config.
        """
        settings, found = self._settings, dict[bool, Config]()
        for config in configs:
            own = (
                (settings.spec_args, settings.draft_model)
                if config.speculative
                else (settings.baseline_args,)
            )
            if config.axis is None and any((settings.model, settings.server_args, settings.python, *own)):
                found.setdefault(config.speculative, config)
        named = []
        for config in found.values():
            (line,) = self._commands(config, "matched", 1, "name")
            named.append((config.id, line.argv[line.argv.index(MODULES["reference"]) + 1 :]))
        return named

    def same_flags(self, config: Config) -> bool:
        matched, best = (self._commands(config, variant, 1, "name") for variant in ("matched", "best"))
        return matched == best

    def unsupported(self, config: Config) -> str | None:
        return self.dialect.unsupported(
            config, launch_request(self._settings.of(config), self.probed.build, "matched", self._draft)
        )

    def start(self, order: Order) -> Running:
        request = launch_request(
            self._settings.of(order.config, order.variant), self.probed.build, order.variant, self._draft
        )
        if (why := self.unsupported(order.config)) is not None:
            raise ConfigNotSupported(
                f"{order.config.id} cannot run on this build (dialect {self.dialect.name})",
                why=why,
                hint="leave this value out of the grid, or choose another build or --ddtree-dialect",
            )
        served_name = f"ddtree-{order.config.id}-{token_hex(4)}"
        host, fixed = address(self._settings, order.config)
        hold = self._hold_port(host, fixed)
        try:
            lines = self._commands(order.config, order.variant, hold.port, served_name)
            for line in lines:
                refuse_fakes(order.title, faked.before_start(line.argv, {**os.environ, **line.env}))
            supervisor = self._supervise()
            launches = tuple(
                order.launch if rank == 0 else f"{order.launch}-node{rank}" for rank in range(len(lines))
            )
            url = f"http://{in_url(host)}:{hold.port}"
            try:
                pids = [
                    launch_one(supervisor, order, launch, line)
                    for launch, line in zip(launches, lines, strict=True)
                ]
                ready = self._wait(order, Nodes(supervisor, launches), url, served_name, hold.release)
                refuse_fakes(order.title, faked.after_start(ready.info))
            except BaseException as error:
                # Also for KeyboardInterrupt: whoever asked for this server never gets a handle to stop it with.
                stops = [
                    supervisor.stop(launch, min(5.0, self._settings.stop_timeout_s)) for launch in launches
                ]
                if isinstance(error, ServerError) and not order.closing():
                    # The next config would find the memory of this one taken.
                    gpu.still_held(self._gpus, {pid for stopped in stops for pid in stopped.pids}, _GPU_S)
                raise
        finally:
            hold.release()
        self._nodes[order.launch] = launches
        line = lines[0]
        return Running(
            launch=order.launch,
            url=url,
            start_no=order.number,
            asked=self.dialect.asked(order.config, request),
            effective=ready.effective,
            info=ready.info,
            dialect=self.dialect,
            exit_code=Nodes(supervisor, launches).exit_code,
            log_path=order.log_path,
            pid=pids[0],
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
        launches = self._nodes.pop(running.launch, (running.launch,))
        stops = [self._supervisor.stop(launch, self._settings.stop_timeout_s) for launch in launches]
        left = [process for stopped in stops for process in stopped.left]
        if left:
            raise StopFailed(
                f"{running.launch} is stopped, but {len(left)} of its processes cannot be killed",
                why=", ".join(f"{pid} ({command})" for pid, command in left),
                hint="a process that even SIGKILL does not end hangs in the kernel, mostly in the GPU driver: see dmesg",
                log_path=running.log_path,
                log_tail=logs.tail(logs.read(running.log_path)),
            )
        port = int(running.url.rpartition(":")[2])
        host = running.url.removeprefix("http://").rpartition(":")[0].strip("[]")
        if not until(lambda: ports.free(host, port), _PORT_S):
            raise StopFailed(
                f"{running.launch} is stopped, but port {port} is still taken",
                why=f"it is held by {ports.holder(port) or 'a process that is not visible'}",
                log_path=running.log_path,
            )
        self._await_gpu(running, {pid for stopped in stops for pid in stopped.pids})

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
            locks = self._once(self._lock)
            try:
                self._supervisor = Supervisor(self._settings.run_dir, keep_fds=locks.descriptors)
            except BaseException:
                # Nobody else would: a session must not wait for its own lock.
                locks.release()
                raise
            self._locks = locks
        return self._supervisor

    def _clear_stale(self) -> None:
        """A server of a run whose pytest is gone would hold the GPU or disturb what is measured."""
        found = stale.find()
        for leftover in found:
            self._progress(f"left behind by an earlier run, being removed: {leftover.describe()}")
        for text in stale.remove(found):
            self._progress(f"could not be removed: {text}")

    def _lock(self) -> HostLocks | SharedHold:
        settings, names = self._settings, list[str]()
        if settings.kind == "sglang":
            if self._gpus is None:
                self._gpus = gpu.load()
            if self._gpus is None:
                self._progress(
                    "NVML is not to be had (nvidia-ml-py or the driver is missing): that the GPU is free after a stop cannot be confirmed"
                )
            self.gpus = gpu.visible(settings.gpus, self._gpus)
            if settings.baseline_gpus is not None:
                self.gpus += gpu.visible(settings.baseline_gpus, self._gpus)
            names = [f"gpu-{identity}" for identity in self.gpus]
        if settings.locks is not None:
            return settings.locks.take(names, timeout_s=settings.lock_timeout_s, progress=self._progress)
        return HostLocks(names, timeout_s=settings.lock_timeout_s, progress=self._progress)

    def _await_gpu(self, running: Running, pids: set[int]) -> None:
        if not (held := gpu.still_held(self._gpus, pids, _GPU_S)):
            return
        raise StopFailed(
            f"{running.launch} is stopped, but its processes {', '.join(map(str, held))} still hold GPU memory after {_GPU_S:g} s",
            hint="the driver is still tearing them down or hangs: see nvidia-smi and dmesg",
            log_path=running.log_path,
        )

    def _commands(
        self, config: Config, variant: BaselineKind, port: int, served_name: str
    ) -> tuple[CommandLine, ...]:
        settings = self._settings.of(config, variant)
        try:
            request = launch_request(settings, self.probed.build, variant, self._draft)
            launch = self.dialect.arguments(config, request)
        except DialectError as error:
            raise ConfigNotSupported(f"{config.id} cannot run on this build", why=str(error)) from error
        return command_lines(settings, config, launch, port=port, served_name=served_name)

    def _hold_port(self, host: str, port: int | None) -> ports.PortHold:
        try:
            if port is None and self._settings.kind == "sglang":
                return ports.PortHold.low(host)
            return ports.PortHold(host, port or 0)
        except OSError as error:
            holder = ports.holder(port) if port else None
            raise PortInUse(
                f"port {port or 'of the server'} on {host} cannot be had",
                why=f"it is held by {holder}" if holder else str(error),
                hint="stop that process, or leave the port to the pool (`pytest-ddtree reap` removes what an earlier run left)",
            ) from error

    def _wait(
        self,
        order: Order,
        nodes: Nodes,
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
            exit_code=nodes.wait_exit,
            closing=lambda: nodes.supervisor.stopping or order.closing(),
            progress=order.progress,
            on_listening=on_listening,
        )
