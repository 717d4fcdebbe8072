"""Whether a server is idle again after a test: nothing running or queued, and as many free cache tokens as after its start."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_ddtree.dialects import serverinfo
from pytest_ddtree.servers import secrets
from pytest_ddtree.servers.http import Http, Unreachable
from pytest_ddtree.servers.told import whole

if TYPE_CHECKING:
    from pytest_ddtree.servers.handle import Running, Server

_METRIC = re.compile(
    r"^sglang:(?P<name>num_running_reqs|num_queue_reqs)(?:\{[^}]*\})? (?P<value>[0-9.eE+-]+)$", re.M
)
_LEAK = re.compile(r"memory leak detected|pool leak", re.IGNORECASE)
_CANARY = re.compile(
    r"kv_canary violation: [^\n]*?fail_reason=(?P<why>\S+) slot_idx=(?P<slot>\d+) position=(?P<position>\d+)"
)
WAIT_S = 30.0
"""How long requests that a test cancelled may take to be gone: a chunk of a long prompt is computed to its end."""
SETTLE_S = 2.0
"""... and its cache tokens after it."""
_MOST_LOG = 8 << 20
_BUSY = 400
"""What SGLang answers to `/flush_cache` while something runs or waits."""


@dataclass(frozen=True, slots=True)
class Load:
    """Requests running and waiting, and cache tokens that a new request could have; None where the server does not say."""

    running: int | None = None
    queued: int | None = None
    free: int | None = None

    @property
    def busy(self) -> bool:
        return bool(self.running or self.queued)

    @property
    def known(self) -> bool:
        """Whether the server says at all whether something runs."""
        return self.running is not None


def live(info: Mapping[str, Any]) -> Load:
    """The load of this moment, where `/server_info` has it. Cached prefixes count as free: they are evicted when needed."""
    state = serverinfo.internal_state(info)
    return Load(
        whole(state.get("num_running_reqs")),
        whole(state.get("num_queue_reqs")),
        whole(state.get("kv_available_tokens")),
    )


def canary(log: str) -> list[str]:
    """What SGLang's KV canary (`--kv-canary log`) found in this piece of a log, as one finding; empty where it found nothing.

    Each verify step repeats what earlier ones saw, so slots are counted, not lines.
    """
    found = list(_CANARY.finditer(log))
    if not found:
        return []
    places = len({(one["slot"], one["position"]) for one in found})
    reasons = ", ".join(sorted({one["why"] for one in found}))
    first = found[0]
    said = f"its KV canary found {places} slots that do not hold what was written ({reasons}); first slot "
    return [f"{said}{first['slot']}, position {first['position']}"]


def leaks(log: str) -> list[str]:
    """The lines of this piece of a log in which SGLang says that cache tokens are lost, each once.

    The words are looked for, not lines that have them: that would read a line of ten thousand letters, such as SGLang's
    `server_args`, once for each of its letters.
    """
    lines = (log[log.rfind("\n", 0, found.start()) + 1 :] for found in _LEAK.finditer(log))
    return list(dict.fromkeys(line.partition("\n")[0].strip() for line in lines))


class IdleWatch:
    """Looks at servers after each test, and remembers what it said, so that a leak is the finding of one test only."""

    def __init__(self, *, api_key: str | None = None, wait_s: float = WAIT_S, ours: bool = True) -> None:
        """`ours`: nobody else uses the servers. Else requests may run on them, and their prefix caches are not emptied for this."""
        self._api_key = api_key
        self._wait_s = wait_s
        self._ours = ours
        self._free: dict[str, int] = {}
        self._read: dict[str, int] = {}

    def check(self, server: Server) -> list[str]:
        """What keeps the server from being as it was after its start, in words; empty when it is idle and its cache is whole.

        One GET where `/server_info` says what runs (the embedded server). SGLang does not, and its gauges of `/metrics` are old
        when nothing runs; there an accepted `/flush_cache` is the proof of idleness, and lost cache tokens are found by its own
        check, which it runs when it becomes idle and writes to the log. A server that knows no such path says nothing, and is
        taken as idle.

        Raises:
            ServerError: the server has died, does not answer, or is another one than the one that was checked.
        """
        server.check_alive()
        running = server.current
        found: list[str] = []
        try:
            with Http(running.url, api_key=self._api_key) as http:
                load = self._look(server, http)
                if load.known:
                    found += self._live(server, http, load)
                elif self._ours:
                    found += self._by_flush(http)
        except Unreachable as error:
            server._condemn(f"it does not answer: {error}")
            server.check_alive()
        server.refresh_log()
        return found + self._log(running)

    def _look(self, server: Server, http: Http) -> Load:
        answer = http.get("/server_info")
        info = answer.json if isinstance(answer.json, dict) else {}
        _same_server(server, info)
        return live(info)

    def _live(self, server: Server, http: Http, load: Load) -> list[str]:
        running = server.current
        start = running.idle.free if running.idle is not None else None
        before = self._free.setdefault(running.launch, -1 if start is None else start)
        if load.busy and not self._ours:
            return []
        busy_until = time.monotonic() + self._wait_s
        while load.busy:
            if time.monotonic() > busy_until:
                return [_still(load, self._wait_s)]
            time.sleep(0.05)
            load = self._look(server, http)
        settled_by = time.monotonic() + SETTLE_S
        while missing := _missing(before, load):
            if load.busy or time.monotonic() > settled_by:
                break
            time.sleep(0.05)
            load = self._look(server, http)
        if load.busy or not missing:
            return []
        self._free[running.launch] = before - missing
        return [
            f"{missing} of {before} cache tokens are not free again, with nothing running or queued: they leak"
        ]

    def _by_flush(self, http: Http) -> list[str]:
        deadline = time.monotonic() + self._wait_s
        while http.post("/flush_cache").status == _BUSY:
            if time.monotonic() > deadline:
                load = _gauges(http)
                words = (
                    _still(load, self._wait_s) + " by its gauges" if load.busy else "its gauges show nothing"
                )
                return [
                    f"/flush_cache is still refused {self._wait_s:g} s after the test, as if something ran; {words}"
                ]
            time.sleep(0.1)
        return []

    def _log(self, running: Running) -> list[str]:
        text, self._read[running.launch] = _since(running.log_path, self._read.get(running.launch, 0))
        return leaks(text) + canary(text)


def at_start(http: Http, info: Mapping[str, Any]) -> Load:
    """The load right after the start. What is free while somebody else's request runs is nothing to compare with later.

    Raises Unreachable.
    """
    load = live(info)
    settled_by = time.monotonic() + SETTLE_S
    while load.busy and time.monotonic() < settled_by:
        # The request that was our check is answered a moment before it is gone.
        time.sleep(0.05)
        load = _load(http)
    return replace(load, free=None) if load.busy else load


def _load(http: Http) -> Load:
    answer = http.get("/server_info")
    return live(answer.json) if isinstance(answer.json, dict) else Load()


_BIRTH = ("served_model_name", "startup_time", "random_seed", "launch_command", "pid", "port")
"""Fields of `/server_info` that a restart changes, or at least one of them."""


def _same_server(server: Server, now: Mapping[str, Any]) -> None:
    """Raise ServerHangs when another process than the one that was checked answers: somebody restarted it meanwhile."""
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


def _missing(before: int, now: Load) -> int:
    return max(0, before - now.free) if now.free is not None else 0


def _still(load: Load, seconds: float) -> str:
    return f"{load.running or 0} requests still run and {load.queued or 0} wait {seconds:g} s after the test"


def _gauges(http: Http) -> Load:
    answer = http.get("/metrics")
    totals: dict[str, int] = {}
    for match in _METRIC.finditer(answer.text if answer.ok else ""):
        totals[match["name"]] = totals.get(match["name"], 0) + int(float(match["value"]))
    return Load(totals.get("num_running_reqs"), totals.get("num_queue_reqs"))


def _since(path: Path | None, start: int) -> tuple[str, int]:
    """The whole lines that a log has from byte `start` on, and where they end. Its first line is ours: what was run."""
    if path is None:
        return "", start
    try:
        size = path.stat().st_size
        begin = max(start if start <= size else 0, size - _MOST_LOG)
        with path.open("rb") as file:
            file.seek(begin)
            # It may have grown since: what comes now is for the next look, and so is a line that is not at its end.
            data = file.read(size - begin)
    except OSError:
        return "", start
    whole = data[: data.rfind(b"\n") + 1]
    text = whole.decode(errors="replace")
    return (text.partition("\n")[2] if text.startswith("$ ") else text), begin + len(whole)
