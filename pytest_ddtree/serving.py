"""The servers of a session: the pool behind them, what is read back from each, and what is stored of every start."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from pytest_ddtree.client.client import Api, AsyncClient
from pytest_ddtree.errors import NotVerified
from pytest_ddtree.grid import BASELINE, Config, sort_key
from pytest_ddtree.results.fingerprint import server_fingerprint
from pytest_ddtree.results.model import StartInfo
from pytest_ddtree.results.resume import ResumeRefused
from pytest_ddtree.server_setup import server_settings
from pytest_ddtree.servers.handle import Server
from pytest_ddtree.servers.idle import IdleWatch
from pytest_ddtree.servers.pool import ServerPool
from pytest_ddtree.unlike import Conditions

if TYPE_CHECKING:
    from pytest_ddtree.run import Run

_HANG_UP_S = 5.0
"""For what takes no time while the loop runs."""


class Servers:
    """Hands out the servers of one session and writes down what it learns of them."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._pool: ServerPool | None = None
        self._clients: dict[tuple[str, Api], AsyncClient] = {}
        self._handles: dict[Config, Server] = {}
        self._known_starts = 0
        self._starts_before = 0
        self._conditions = Conditions()
        self._idle = IdleWatch(api_key=run.settings.api_key, ours=run.settings.server != "url")

    @property
    def pool(self) -> ServerPool:
        """The pool, made when first asked for; that starts nothing."""
        if self._pool is None:
            run = self._run
            group = 0 if run.place is None else run.place.group
            self._pool = ServerPool(
                replace(server_settings(run.settings, run.facts, run.run_dir, group), locks=run.shared_locks),
                progress=run.progress,
                starts_before=self._starts_before,
            )
            self._pool.wake_on_signals()
        return self._pool

    def get(self, config: Config, reason: str | None, *, best: bool) -> Server:
        """The server of a config, ready, read back and compared with what was asked. Raises Infrastructure."""
        run = self._run
        try:
            with run.ledger.during("start"):
                server = self.pool.get(config, reason, variant="best" if best else "matched")
        finally:
            self._note_starts()
        self._handles[config] = server
        for text in server.warnings:
            run.warn(f"{config.id}: {text}")
        self._note_differences(config, server)
        effective = server.effective.to_json()
        if run.results.effective.get(config.id) != effective:
            run.results.effective[config.id] = effective
            run.store("effective", config=config.id, effective=effective)
            run.store("mismatches", config=config.id, mismatches=[str(one) for one in server.mismatches()])
            self._note_fingerprint(config, server)
        return server

    def check(self) -> None:
        """Refuse options with which no server of this session can be had; starts none. Raises Infrastructure."""
        baseline = (BASELINE,) if self._run.has_baseline else ()
        self.pool.check((*baseline, *self._run.configs))

    def unsupported(self, configs: Iterable[Config]) -> dict[Config, str]:
        """The configs that the build cannot express, each with what it has instead; starts no server. Raises Infrastructure."""
        with self._run.ledger.during("probe"):
            return self.pool.unsupported(configs)

    def flags(self) -> frozenset[str]:
        """The flags that the build's help lists; none where it was not asked. Starts no server. Raises Infrastructure."""
        with self._run.ledger.during("probe"):
            build = self.pool.build()
        return frozenset() if build is None else build.flags

    def left_running(self) -> list[str]:
        """What keeps the servers that are up from being as they were after their start; starts nothing. Raises Infrastructure."""
        servers = self._pool.servers if self._pool is not None else ()
        return [f"{server.config.id}: {text}" for server in servers for text in self._idle.check(server)]

    def handle(self, config: Config) -> Server | None:
        """The server that a config had last, if any; starts nothing."""
        return self._handles.get(config)

    def report_fault(self, config: Config, why: str) -> None:
        """The server of a config does not do its work: the next `get` starts it once more, a second fault ends the config."""
        server = self._handles.get(config)
        self.pool.report_fault(config, why, variant="matched" if server is None else server.variant)

    def is_up(self, config: Config) -> bool:
        """Whether the server of a config runs now; starts nothing."""
        return self.pool.peek(config) is not None

    def client(self, server: Server, api: Api) -> AsyncClient:
        """The asynchronous client of one endpoint of a server, one per address."""
        settings = self._run.settings
        if (server.url, api) not in self._clients:
            self._clients[server.url, api] = AsyncClient(
                server.url, api_key=settings.api_key, timeout_s=settings.request_timeout, api=api
            )
        return self._clients[server.url, api]

    def version(self) -> str:
        """The version of a build whose sources are not known, without a start where that can be. Raises Infrastructure."""
        known = self.pool.build()
        if known is not None:
            return str(known.revision or known.version or "of unknown version")
        run, up = self._run, self.pool.servers
        first = next(iter(sorted(run.plan.configs, key=sort_key)), run.configs[0])
        return str((up[0] if up else run.get(first)).info.get("version") or "of unknown version")

    def alarm(self) -> None:
        """Begin to stop every server and return at once; for signal handlers."""
        if self._pool is not None:
            self._pool.alarm()

    def release(self) -> None:
        """Stop the servers and give the GPU back; the next one that is asked for is a new start."""
        self._hang_up()
        if (pool := self._pool) is not None:
            # Broken off by Ctrl-C it stays, and `close` does the rest.
            pool.close()
            self._pool = None
            self._starts_before += len(pool.starts)
            self._known_starts = 0

    def close(self) -> None:
        """Stop every server. May be called twice."""
        self._hang_up()
        if self._pool is not None:
            try:
                self._pool.close()
            finally:
                self._note_starts()

    def _hang_up(self) -> None:
        """Close the clients' connections, also those whose server will outlive them; the loop may end before it sees a server's end."""
        clients, self._clients = tuple(self._clients.values()), {}
        for client in clients:
            with suppress(TimeoutError):
                self._run.begin(client.aclose()).result(_HANG_UP_S)

    def _note_differences(self, config: Config, server: Server) -> None:
        """Store in which conditions a config differs from the baselines that it is compared with."""
        run = self._run
        for one in self._conditions.note(config, server.variant, server.effective):
            found = list(one.differences)
            run.results.differences[f"{one.config.id} against the {one.variant} baseline"] = found
            run.store("differences", config=one.config.id, baseline=one.variant, differences=found)
            if one.warning is not None:
                run.warn(f"{one.config.id}: {one.warning}")

    def _note_fingerprint(self, config: Config, server: Server) -> None:
        run, now = self._run, server_fingerprint(server)
        run.fingerprints[config.id] = now
        if run.resumed is not None:
            try:
                run.resumed.check(config.id, now)
                run.resumed.check_version(now)
            except ResumeRefused as error:
                raise NotVerified(str(error)) from None
        if run.resumed is None or config.id not in run.resumed.stored.fingerprints:
            run.store("fingerprint", scope=config.id, fingerprint=now.as_json())

    def _note_starts(self) -> None:
        run, starts = self._run, self.pool.starts
        for start in starts[self._known_starts :]:
            run.results.starts.append(StartInfo(start.config.id, start.reason, start.seconds))
            run.store(
                "start", config=start.config.id, reason=start.reason, seconds=start.seconds, ok=start.ok
            )
        self._known_starts = len(starts)
