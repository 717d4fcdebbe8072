"""A server that somebody else runs: no life cycle, but the same proof of what it is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pytest_ddtree.dialects import faked, registry
from pytest_ddtree.dialects.base import Dialect, LaunchRequest
from pytest_ddtree.dialects.effective import EffectiveConfig, compare
from pytest_ddtree.grid import Config
from pytest_ddtree.servers import chosen, secrets
from pytest_ddtree.servers.backend import Order
from pytest_ddtree.servers.errors import ConfigNotSupported, ServerError, StartFailed, StartTimeout
from pytest_ddtree.servers.fakes import refuse_fakes
from pytest_ddtree.servers.handle import Running
from pytest_ddtree.servers.readiness import Expectation, Ready, wait_ready
from pytest_ddtree.servers.settings import ServerSettings

_WAIT_S = 60.0
"""A server that is said to run is given this long to answer."""
_ABSENT_S = 5.0
"""... and this long where not even a connection can be had."""


class UrlBackend:
    """One speculative server and perhaps a baseline, by their URLs. Nothing is started or stopped."""

    def __init__(self, settings: ServerSettings) -> None:
        """Raises ConfigNotSupported for a dialect that does not exist."""
        self._settings = settings
        self._named = chosen.dialect(settings)
        self._silent: dict[str, tuple[str, ServerError]] = {}

    def check(self, configs: Sequence[Config]) -> None:
        """Nothing is started, and a dialect that does not exist was refused when this was made."""
        del configs

    def same_flags(self, config: Config) -> bool:
        del config
        return True

    def unsupported(self, config: Config) -> str | None:
        del config
        return None

    def start(self, order: Order) -> Running:
        settings = self._settings
        first = settings.url if order.config.speculative else settings.baseline_url
        if first is None:
            option = "--ddtree-url" if order.config.speculative else "--ddtree-baseline-url"
            raise ConfigNotSupported(
                f"there is no server for {order.config.id}", hint=f"give its address with {option}"
            )
        urls = (first, *settings.more_urls) if order.config.speculative else (first,)
        found: list[Running] = []
        silent: list[StartFailed] = []
        for url in urls:
            try:
                found.append(self._read(order, url.rstrip("/")))
            except StartFailed as error:
                silent.append(error)
        for running in found:
            if not compare(running.asked, running.effective):
                return running
        # One that does not answer may be the one that runs it; else the first shows by name and value what is wrong.
        if silent:
            raise silent[0]
        return found[0]

    def _ready(self, order: Order, url: str) -> Ready:
        """Wait for the server behind `url`; where it did not answer one config, it is not waited for on behalf of the next."""
        title = f"server {order.config.id} at {secrets.url(url)}"
        if url in self._silent:
            first, error = self._silent[url]
            raise StartFailed(
                f"{title} is not asked again, because it did not answer when {first} needed it",
                why=error.what,
                hint=error.hint,
            )
        try:
            return wait_ready(
                Expectation(
                    title=title,
                    url=url,
                    dialect=self._dialect,
                    deadline=min(order.deadline, order.deadline - order.budget_s + _WAIT_S),
                    budget_s=min(order.budget_s, _WAIT_S),
                    absent_s=_ABSENT_S,
                    api_key=self._settings.api_key,
                ),
                exit_code=_never,
                closing=order.closing,
                progress=order.progress,
            )
        except StartTimeout as error:
            self._silent[url] = order.config.id, error
            raise

    def _read(self, order: Order, url: str) -> Running:
        settings = self._settings
        ready = self._ready(order, url)
        refuse_fakes(f"the server at {secrets.url(url)}", faked.after_start(ready.info))
        request = LaunchRequest(
            model=settings.model or "",
            block_size=settings.block_size or _block_size(order.config, ready.effective.block_size),
        )
        asked = ready.dialect.asked(order.config, request)
        # Conditions that nobody asked of a foreign server are not held against it; the knobs of the config are.
        knobs = {name: reading for name, reading in asked.readings.items() if name in _KNOBS}
        return Running(
            launch=order.launch,
            url=url,
            start_no=order.number,
            asked=EffectiveConfig(knobs),
            effective=ready.effective,
            info=ready.info,
            dialect=ready.dialect,
            exit_code=lambda: None,
            warnings=ready.effective.warnings,
            idle=ready.idle,
        )

    def stop(self, running: Running) -> None:
        del running

    def alarm(self) -> None:
        """Nothing of ours runs."""

    def close(self) -> list[str]:
        return []

    def _dialect(self, info: Mapping[str, Any]) -> Dialect:
        return self._named or registry.of_server(info)


_KNOBS = frozenset({"algorithm", "block_size", "budget", "verify_width", "topk", "window", "compact_cache"})


def _block_size(config: Config, seen: object) -> int | None:
    if config.block_size is not None:
        return config.block_size
    return seen if isinstance(seen, int) else None


def _never(seconds: float) -> None:
    """A foreign server has no exit code; this is only the pause between two tries."""
    import time

    time.sleep(seconds)
