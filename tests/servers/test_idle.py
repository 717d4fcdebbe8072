"""After a test the server must be as it was: nothing running, nothing queued, no cache token lost."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pytest_ddtree.grid import Config
from pytest_ddtree.servers import idle
from pytest_ddtree.servers.errors import ServerDied
from pytest_ddtree.servers.http import Http

from . import support

B8 = Config("tree", 8, 4)


def state(running: int = 0, queued: int = 0, free: int = 4096) -> dict[str, Any]:
    return {
        "internal_states": [
            {"num_running_reqs": running, "num_queue_reqs": queued, "kv_available_tokens": free}
        ]
    }


def test_idle(tmp_path: Path) -> None:
    with support.pool(tmp_path, {"info": state()}) as pool:
        server = pool.get(B8)
        assert server.current.idle == idle.Load(0, 0, 4096)
        assert idle.check(server) == []


@pytest.mark.parametrize(
    ("later", "text"),
    [
        (state(2, 1), "2 requests still run and 1 wait 0.3 s after the test"),
        (state(free=4000), "96 cache tokens are not free again after a flush: they leak"),
    ],
)
def test_not_as_it_was(tmp_path: Path, later: dict[str, Any], text: str) -> None:
    with support.pool(tmp_path, {"info": state(), "info_after": {"count": 1, "info": later}}) as pool:
        server = pool.get(B8)
        _generate(server.url)
        assert idle.check(server, timeout_s=0.3) == [text]


def test_a_server_that_refuses_to_flush(tmp_path: Path) -> None:
    with support.pool(tmp_path, {"info": state(), "flush": 400}) as pool:
        assert idle.check(pool.get(B8), timeout_s=0.2) == [
            "/flush_cache is still refused 0.2 s after the test, as if something ran"
        ]


def test_figures_of_metrics(tmp_path: Path) -> None:
    metrics = (
        '# HELP sglang:num_running_reqs x\nsglang:num_running_reqs{model="m",rank="0"} 1.0\nsglang:num_running_reqs{rank="1"} 2.0\n'
        'sglang:num_queue_reqs{rank="0"} 0.0\nsglang:num_used_tokens{rank="0"} 1.2e+01\nsglang:num_running_reqs_offline 9\n'
    )
    with support.pool(tmp_path, {"metrics": metrics}) as pool, Http(pool.get(B8).url) as http:
        assert idle.read(http) == idle.Load(3, 0, None, 12)


def test_a_server_that_says_nothing_is_taken_as_idle(tmp_path: Path) -> None:
    with support.pool(tmp_path) as pool:
        server = pool.get(B8)
        assert server.current.idle == idle.Load()
        assert idle.check(server) == []


def test_a_leak_that_the_server_found_itself(tmp_path: Path) -> None:
    line = "[2026-11-29 16:46:02] token_to_kv_pool_allocator memory leak detected! available_size=1"
    with support.pool(tmp_path, {"log": [[0, line]]}) as pool:
        assert idle.check(pool.get(B8)) == [line]


def test_a_dead_server_is_an_error(tmp_path: Path) -> None:
    with support.pool(tmp_path, {"after_ready": {"s": 0.3, "text": "boom"}}) as pool:
        server = pool.get(B8)
        assert support.eventually(lambda: not server.running)
        with pytest.raises(ServerDied):
            idle.check(server)


def _generate(url: str) -> None:
    with Http(url) as http:
        http.post("/generate", {"text": "x", "sampling_params": {"max_new_tokens": 1}})
