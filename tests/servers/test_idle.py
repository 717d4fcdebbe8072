"""After a test the server must be as it was: nothing running, nothing queued, no cache token lost."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_ddtree.grid import Config
from pytest_ddtree.servers import idle
from pytest_ddtree.servers.errors import ServerDied
from pytest_ddtree.servers.handle import Server
from pytest_ddtree.servers.http import Http
from pytest_ddtree.servers.idle import IdleWatch, leaks

from . import support

B8 = Config("tree", 8, 4)
DATA = Path(__file__).parents[1] / "data"


@pytest.fixture(autouse=True)
def settles_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """What these servers say of their cache does not change by waiting."""
    monkeypatch.setattr(idle, "SETTLE_S", 0.1)


def state(running: int = 0, queued: int = 0, free: int = 4096) -> dict[str, Any]:
    return {
        "internal_states": [
            {"num_running_reqs": running, "num_queue_reqs": queued, "kv_available_tokens": free}
        ]
    }


def look(server: Server, **changes: Any) -> list[str]:
    return IdleWatch(**{"wait_s": 0.3, **changes}).check(server)


def test_idle(tmp_path: Path) -> None:
    with support.pool(tmp_path, {"info": state()}) as pool:
        server = pool.get(B8)
        assert server.current.idle == idle.Load(0, 0, 4096)
        assert look(server) == []


@pytest.mark.parametrize(
    ("later", "text"),
    [
        (state(2, 1), "2 requests still run and 1 wait 0.3 s after the test"),
        (
            state(free=4000),
            "96 of 4096 cache tokens are not free again, with nothing running or queued: they leak",
        ),
    ],
)
def test_not_as_it_was(tmp_path: Path, later: dict[str, Any], text: str) -> None:
    with support.pool(tmp_path, {"info": state(), "info_after": {"count": 1, "info": later}}) as pool:
        server = pool.get(B8)
        _generate(server.url)
        assert look(server) == [text]


def test_a_leak_is_the_finding_of_one_test(tmp_path: Path) -> None:
    later = {"count": 1, "info": state(free=4000)}
    with support.pool(tmp_path, {"info": state(), "info_after": later}) as pool:
        server, watch = pool.get(B8), IdleWatch(wait_s=0.3)
        assert watch.check(server) == []
        _generate(server.url)
        assert len(watch.check(server)) == 1
        assert watch.check(server) == []


def test_requests_of_others_on_a_server_that_is_not_ours(tmp_path: Path) -> None:
    later = {"count": 1, "info": state(2, 1, free=100)}
    with support.pool(tmp_path, {"info": state(), "info_after": later}) as pool:
        server = pool.get(B8)
        _generate(server.url)
        assert look(server, ours=False) == []


def test_a_server_that_was_busy_at_its_start_says_nothing_of_its_cache(tmp_path: Path) -> None:
    later = {"count": 1, "info": state(free=4000)}
    with support.pool(tmp_path, {"info": state(1, 0, 4050), "info_after": later}) as pool:
        server = pool.get(B8)
        assert server.current.idle == idle.Load(1, 0, None)
        _generate(server.url)
        assert look(server) == []


STALE = """# HELP sglang:num_running_reqs x
sglang:num_running_reqs{model="m",rank="0"} 1.0
sglang:num_running_reqs{rank="1"} 2.0
sglang:num_queue_reqs{rank="0"} 0.0
sglang:num_used_tokens{rank="0"} 1.2e+01
sglang:num_running_reqs_offline 9
"""


def test_a_server_that_refuses_to_flush(tmp_path: Path) -> None:
    with support.pool(tmp_path, {"flush": 400, "metrics": STALE}) as pool:
        (said,) = look(pool.get(B8))
    assert said.startswith("/flush_cache is still refused 0.3 s after the test, as if something ran")
    assert said.endswith("3 requests still run and 0 wait 0.3 s after the test by its gauges")


def test_old_gauges_of_a_server_that_flushes_are_no_finding(tmp_path: Path) -> None:
    with support.pool(tmp_path, {"metrics": STALE}) as pool:
        assert look(pool.get(B8)) == []


@pytest.mark.parametrize("status", [200, 403, 500])
def test_a_server_that_says_nothing_is_taken_as_idle(tmp_path: Path, status: int) -> None:
    with support.pool(tmp_path, {"flush": status}) as pool:
        server = pool.get(B8)
        assert server.current.idle == idle.Load()
        assert look(server) == []


def test_a_leak_is_told_by_the_whole_line_that_names_it() -> None:
    line = "[2026-11-30 04:00:00] req_to_token_pool Memory Leak detected! available_size=1"
    long = "server_args=ServerArgs(" + "a=1, " * 3000 + ")"
    assert leaks(f"{long}\n{line}\n{long} pool leak\n  {line}") == [line, f"{long} pool leak"]
    assert leaks(f"{line} again") == [f"{line} again"], "the first and the last line of a piece"
    assert leaks(f"{long}\nmemory of leaks\n") == []


def test_a_log_is_read_line_by_line_and_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It grows while it is looked at."""
    log = tmp_path / "log"
    log.write_text("$ command\na\nmemory le")
    text, end = idle._since(log, 0)
    assert text == "a\n"
    with log.open("a") as more:
        more.write("ak detected\nb\n")
    assert idle._since(log, end) == ("memory leak detected\nb\n", log.stat().st_size)
    # As if `b` was written between the look at the size and the reading.
    size = SimpleNamespace(st_size=log.stat().st_size - 2)
    with monkeypatch.context() as then:
        then.setattr(Path, "stat", lambda path: size)
        assert idle._since(log, end) == ("memory leak detected\n", size.st_size)
    assert idle._since(log, size.st_size) == ("b\n", log.stat().st_size)


def test_a_leak_that_the_server_found_itself_is_said_once(tmp_path: Path) -> None:
    line = "[2026-11-29 16:46:02] token_to_kv_pool_allocator memory leak detected! available_size=1"
    with support.pool(tmp_path, {"log": [[0, line]]}) as pool:
        server, watch = pool.get(B8), IdleWatch()
        assert watch.check(server) == [line]
        assert watch.check(server) == []


def test_what_the_kv_canary_found_is_one_finding(tmp_path: Path) -> None:
    """Lines of a real server with `--kv-canary log`, of which a thousand came in 40 seconds."""
    lines = (DATA / "sglang-0.5.16" / "canary.server.log").read_text().splitlines()
    with support.pool(tmp_path, {"log": [[0, line] for line in lines]}) as pool:
        server, watch = pool.get(B8), IdleWatch()
        assert watch.check(server) == [
            "its KV canary found 3 slots that do not hold what was written (verify_real_kv_hash); first slot 133, position 43"
        ]
        assert watch.check(server) == []


def test_a_dead_server_is_an_error(tmp_path: Path) -> None:
    with support.pool(tmp_path) as pool:
        server = pool.get(B8)
        support.kill(server)
        with pytest.raises(ServerDied):
            look(server)


def _generate(url: str) -> None:
    with Http(url) as http:
        http.post("/generate", {"text": "x", "sampling_params": {"max_new_tokens": 1}})
