"""Whether a server is idle again after a test: nothing running or queued, and as many free cache tokens as after its start."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pytest_ddtree.dialects import serverinfo
from pytest_ddtree.servers import logs, secrets
from pytest_ddtree.servers.http import Http, Unreachable

if TYPE_CHECKING:
    from pytest_ddtree.servers.handle import Server

_METRIC = re.compile(
    r"^sglang:(?P<name>num_running_reqs|num_queue_reqs|num_used_tokens)(?:\{[^}]*\})? (?P<value>[0-9.eE+-]+)$",
    re.M,
)
_LEAK = re.compile(r"[^\n]*(?:memory leak detected|pool leak)[^\n]*", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Load:
    """Requests running and waiting, cache tokens free or in use; None where the server does not say."""

    running: int | None = None
    queued: int | None = None
    free: int | None = None
    used: int | None = None

    @property
    def busy(self) -> bool:
        return bool(self.running or self.queued)


def read(http: Http, info: Mapping[str, Any] | None = None) -> Load:
    """The load now, from `/server_info` where it says, else from `/metrics`. Raises Unreachable."""
    if info is None:
        answer = http.get("/server_info")
        info = answer.json if isinstance(answer.json, dict) else {}
    state = serverinfo.internal_state(info)
    if "num_running_reqs" in state:
        return Load(
            _count(state.get("num_running_reqs")),
            _count(state.get("num_queue_reqs")),
            _count(state.get("kv_available_tokens")),
        )
    answer = http.get("/metrics")
    if not answer.ok:
        return Load()
    totals: dict[str, int] = {}
    for match in _METRIC.finditer(answer.text):
        totals[match["name"]] = totals.get(match["name"], 0) + int(float(match["value"]))
    return Load(
        totals.get("num_running_reqs"), totals.get("num_queue_reqs"), None, totals.get("num_used_tokens")
    )


def flush(http: Http) -> bool:
    """Empty the prefix cache; False when the server refuses because it is busy. Raises Unreachable."""
    return http.post("/flush_cache").ok


def check(server: Server, *, api_key: str | None = None, timeout_s: float = 5.0) -> list[str]:
    """What keeps the server from being as it was after its start, in words; empty when it is idle and its cache is whole.

    Waits `timeout_s` seconds for it to become idle, and flushes the cache, because cached prefixes are no leak. Raises
    ServerError when the server has died or does not answer.
    """
    server.check_alive()
    running = server.current
    deadline = time.monotonic() + timeout_s
    with Http(running.url, api_key=api_key) as http:
        try:
            _same_server(server, http)
            while True:
                load = read(http)
                flushed = not load.busy and flush(http)
                if flushed:
                    load = read(http)
                    if not _missing(running.idle, load):
                        break
                if time.monotonic() > deadline:
                    break
                time.sleep(0.1)
        except Unreachable as error:
            server._condemn(f"it does not answer: {error}")
            server.check_alive()
    found = []
    if load.busy:
        found.append(
            f"{load.running or 0} requests still run and {load.queued or 0} wait {timeout_s:g} s after the test"
        )
    elif not flushed:
        found.append(f"/flush_cache is still refused {timeout_s:g} s after the test, as if something ran")
    elif missing := _missing(running.idle, load):
        found.append(f"{missing} cache tokens are not free again after a flush: they leak")
    found += [match.group().strip() for match in _LEAK.finditer(logs.body(running.log_path))]
    return found


_BIRTH = ("served_model_name", "startup_time", "random_seed", "launch_command", "pid", "port")
"""Fields of `/server_info` that a restart changes, or at least one of them."""


def _same_server(server: Server, http: Http) -> None:
    """Raise ServerHangs when another process than the one that was checked answers: somebody restarted it meanwhile."""
    answer = http.get("/server_info")
    now = answer.json if isinstance(answer.json, dict) else {}
    then = server.info
    changed = [
        name for name in _BIRTH if name in then and name in now and secrets.fields(now)[name] != then[name]
    ]
    if changed:
        server._condemn(
            "another process answers than the one that was checked: "
            + ", ".join(f"{n} changed" for n in changed)
        )
        server.check_alive()


def _missing(before: Load | None, now: Load) -> int:
    if before is None:
        return 0
    if before.free is not None and now.free is not None:
        return max(0, before.free - now.free)
    if before.used is not None and now.used is not None:
        return max(0, now.used - before.used)
    return 0


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None
