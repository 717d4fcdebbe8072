"""The pool: one handle a config, as few starts as the order of the tests allows, each with its reason, nothing left behind."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from pytest_ddtree.dialects.base import BaselineKind
from pytest_ddtree.dialects.build import Build
from pytest_ddtree.grid import Config
from pytest_ddtree.servers import kinds, logs, wakeup
from pytest_ddtree.servers.backend import Backend, Order
from pytest_ddtree.servers.errors import ConfigEnded, PoolClosed, ServerError
from pytest_ddtree.servers.handle import Running, Server, describe_end
from pytest_ddtree.servers.local import LocalBackend
from pytest_ddtree.servers.settings import ServerSettings

FAULTS_ALLOWED = 2
"""A server that died or hung so often is not started again."""


@dataclass(frozen=True, slots=True)
class Start:
    """One start: of what, why (None: the first of its config), how long it took, whether it became ready."""

    config: Config
    reason: str | None
    seconds: float
    log_path: Path | None
    variant: BaselineKind = "matched"
    ok: bool = True


class ServerPool:
    """Owns every server of the session. Thread-safe; `alarm` and `close` may be called from a signal handler."""

    def __init__(
        self,
        settings: ServerSettings,
        *,
        progress: Callable[[str], None] | None = None,
        backend: Backend | None = None,
        starts_before: int = 0,
    ) -> None:
        """`starts_before` is how many starts pools before this one made in the same folder: numbers and logs go on from there."""
        self.settings = settings
        self._starts_before = starts_before
        self.starts: list[Start] = []
        self._progress = progress or (lambda text: None)
        self._backend = backend
        self._lock = threading.RLock()
        self._handles: dict[tuple[Config, BaselineKind], Server] = {}
        self._order: list[Server] = []
        self._faults: dict[Server, list[str]] = {}
        self._failed: dict[Server, ServerError] = {}
        self._started: set[Server] = set()
        self._closing = False
        self._armed: int | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def get(self, config: Config, reason: str | None = None, *, variant: BaselineKind = "matched") -> Server:
        """The server of `config`, running; started if it is not, after stopping another one where there is no room.

        The same handle every time. `reason` says why a start is needed that the plain order of configs does not explain (`rescore`,
        `repeat`, `ab`). `variant="best"` is the baseline with its own best flags; where these equal the matched ones it is the same
        server. A server that died or was reported as faulty is started once more; after the second time this raises ConfigEnded. A
        start that failed is not tried again: the same error is raised. Raises ServerError.
        """
        with self._lock:
            self._refuse_when_closing(config)
            server = self._handle(config, variant)
            if server.running:
                self._touch(server)
                return server
            if server in self._failed and reason is None:
                raise self._failed[server]
            why = self._bury(server) or reason
            if why is None and server in self._started:
                why = "repeat"
            if why is None and config.axis is not None:
                why = f"axis {config.axis.name}={config.axis.value}"
            if why is None and server.variant == "best":
                why = "best-baseline"
            self._make_room(server)
            self._start(server, why)
            return server

    def unsupported(self, configs: Iterable[Config]) -> dict[Config, str]:
        """The configs that the build cannot run, with the reason; probes the build once and starts no server. Raises ServerError."""
        with self._lock:
            backend = self._backend_now()
            found = {config: backend.unsupported(config) for config in configs}
            return {config: why for config, why in found.items() if why is not None}

    def check(self, configs: Sequence[Config]) -> None:
        """Refuse options with which no server can be had; starts none. Raises ServerError."""
        with self._lock:
            self._backend_now().check(configs)

    def build(self) -> Build | None:
        """What is known of the build before a start, probed once; None for servers that this pool does not start. Raises ServerError."""
        with self._lock:
            backend = self._backend_now()
            return backend.probed.build if isinstance(backend, LocalBackend) else None

    def peek(self, config: Config, *, variant: BaselineKind = "matched") -> Server | None:
        """The handle of a config if it is running now; starts nothing."""
        with self._lock:
            server = self._handles.get((config, variant))
            return server if server is not None and server.running else None

    def report_fault(self, config: Config, why: str, *, variant: BaselineKind = "matched") -> None:
        """A test saw the server hang or answer 5xx: the next `get` replaces it, the second time it ends the config."""
        with self._lock:
            server = self._handles.get((config, variant))
            if server is not None and server in self._order:
                server._condemn(why)

    def stop(self, config: Config, *, variant: BaselineKind = "matched") -> None:
        """Stop the server of `config` if it runs. Raises StopFailed if something of it stays."""
        with self._lock:
            server = self._handles.get((config, variant))
            if server is not None and server in self._order:
                self._stop(server)

    def wake_on_signals(self) -> None:
        """Let the interpreter tell the supervisor of Ctrl-C, SIGTERM and SIGHUP at once, whatever the main thread is doing.

        Call it in the main thread; it holds from the first start to `close`. Signals still reach their Python handlers.
        """
        with self._lock:
            self._wake = threading.current_thread() is threading.main_thread()
            self._arm()

    def alarm(self) -> None:
        """Begin to stop every server and return at once. For signal handlers: it takes no lock and waits for nothing."""
        self._closing = True
        if self._backend is not None:
            self._backend.alarm()

    def close(self) -> None:
        """Stop every server, gently unless an alarm came first. Idempotent; never raises for what it cannot stop: it says so.

        Where a signal broke it off, the next call does the rest.
        """
        hurry = self._closing
        self._closing = True
        if hurry and self._backend is not None:
            self._backend.alarm()
        with self._lock:
            self._disarm()
            for server in list(self._order):
                if hurry:
                    continue
                with contextlib.suppress(ServerError):
                    self._stop(server)
            for server in self._order:
                server._bind(None)
            self._order.clear()
            if self._backend is not None:
                for left in self._backend.close():
                    self._progress(f"could not be removed: {left}")
                self._backend = None

    @property
    def servers(self) -> tuple[Server, ...]:
        """Handles of the servers that run now, the least recently used first."""
        return tuple(self._order)

    _wake = False

    def _handle(self, config: Config, variant: BaselineKind) -> Server:
        if variant == "best" and (config.speculative or self._backend_now().same_flags(config)):
            variant = "matched"
        key = (config, variant)
        if key not in self._handles:
            self._handles[key] = Server(config, self.settings.model or "", variant)
        return self._handles[key]

    def _backend_now(self) -> Backend:
        if self._backend is None:
            self._backend = kinds.backend(self.settings, self._progress)
        return self._backend

    def _refuse_when_closing(self, config: Config) -> None:
        if self._closing:
            raise PoolClosed(f"no server for {config.id}: the servers are being stopped")

    def _touch(self, server: Server) -> None:
        if server in self._order:
            self._order.remove(server)
        self._order.append(server)

    def _bury(self, server: Server) -> str | None:
        """Clean up after a server that died or was reported; returns the reason of the start that follows."""
        if server not in self._order:
            return None
        running = server.current
        code = running.exit_code()
        server.refresh_log()
        text = logs.read(running.log_path)
        gone = "it is gone" if code is None else f"it ended ({describe_end(code, text)})"
        self._faults.setdefault(server, []).append(server._fault or gone)
        self._stop(server)
        if len(self._faults[server]) >= FAULTS_ALLOWED:
            first, last = self._faults[server][0], self._faults[server][-1]
            raise ConfigEnded(
                f"the server of {server.config.id} failed {len(self._faults[server])} times and is not started again: "
                f"first {first}, then {last}",
                why=logs.root_cause(text),
                log_path=running.log_path,
                log_tail=logs.tail(text),
            )
        return "restart-after-death"

    def _make_room(self, server: Server) -> None:
        """Stop what there is no room for: speculative servers first, the least recently used first.

        Where the baseline has GPUs of its own, only what runs on the same ones has to go.
        """
        if self.settings.baseline_apart:
            going = [other for other in self._order if other.config.speculative == server.config.speculative]
        else:
            ranked = sorted(self._order, key=lambda other: not other.config.speculative)
            going = ranked[: max(0, len(ranked) + 1 - self.settings.servers_at_once)]
        for other in going:
            self._stop(other)

    def _start(self, server: Server, reason: str | None) -> None:
        if server in self._faults and len(self._faults[server]) >= FAULTS_ALLOWED:
            raise ConfigEnded(f"the server of {server.config.id} failed twice; it is not started again")
        number = self._starts_before + len(self.starts) + 1
        suffix = "-best" if server.variant == "best" else ""
        launch = f"{server.config.id}{suffix}-{number}"
        began = time.monotonic()
        order = Order(
            config=server.config,
            variant=server.variant,
            number=number,
            launch=launch,
            log_path=self.settings.run_dir / "logs" / f"{launch}.log",
            deadline=began + self.settings.start_timeout_s,
            budget_s=self.settings.start_timeout_s,
            progress=self._progress,
            closing=lambda: self._closing,
        )
        if reason is not None:
            self._progress(f"{order.title}: extra start ({reason})")
        ok = False
        try:
            running = self._backend_now().start(order)
            ok = True
        except PoolClosed:
            raise
        except ServerError as error:
            self._failed[server] = error
            raise
        finally:
            seconds = time.monotonic() - began
            log = order.log_path if order.log_path.exists() else None
            if ok or log is not None:
                self.starts.append(Start(server.config, reason, seconds, log, server.variant, ok))
            self._arm()
        self._admit(server, running)
        self._progress(f"{order.title}: ready after {time.monotonic() - began:.1f} s")

    def _admit(self, server: Server, running: Running) -> None:
        server._bind(running)
        self._started.add(server)
        self._failed.pop(server, None)
        self._touch(server)

    def _stop(self, server: Server) -> None:
        running = server.current
        self._order.remove(server)
        server._bind(None)
        self._backend_now().stop(running)

    def _arm(self) -> None:
        descriptor = getattr(self._backend, "alarm_fd", None)
        if (
            self._wake
            and self._armed is None
            and descriptor is not None
            and threading.current_thread() is threading.main_thread()
        ):
            wakeup.claim(descriptor)
            self._armed = descriptor

    def _disarm(self) -> None:
        if self._armed is not None and threading.current_thread() is threading.main_thread():
            wakeup.give_up(self._armed)
            self._armed = None
