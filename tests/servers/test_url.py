"""Servers that somebody else runs: the same proof of what they are, and no life cycle."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from pytest_ddtree.grid import BASELINE, Config
from pytest_ddtree.servers import ports, remote
from pytest_ddtree.servers.errors import ConfigNotSupported, FakedServer, ServerHangs, StartFailed
from pytest_ddtree.servers.http import Http
from pytest_ddtree.servers.idle import IdleWatch
from pytest_ddtree.servers.pool import ServerPool
from pytest_ddtree.servers.settings import ServerSettings

from . import support

B8 = Config("tree", 8, 8, 128)
TREE = (
    "--speculative-algorithm DFLASH --speculative-dflash-enable-ddtree --speculative-num-draft-tokens 9 "
    "--speculative-draft-window-size 128"
)


@contextmanager
def foreign(args: str = "", **script: Any) -> Iterator[str]:
    """The URL of a server that this pool did not start."""
    hold = ports.PortHold("127.0.0.1")
    switches = {
        "switches": ["--speculative-dflash-enable-ddtree"],
        "flags": ["--speculative-draft-window-size"],
        **script,
    }
    env = {**os.environ, "PYTHONPATH": str(support.FAKE), "FAKE_SGLANG": json.dumps(switches)}
    command = [
        sys.executable,
        "-m",
        "sglang.launch_server",
        "--model-path",
        "/m",
        "--port",
        str(hold.port),
        *args.split(),
    ]
    process = subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL)
    try:
        # A server that is said to run is given seconds for a connection, not for its start.
        assert support.eventually(
            lambda: ports.listening("127.0.0.1", hold.port) or process.poll() is not None
        )
        yield f"http://127.0.0.1:{hold.port}"
    finally:
        hold.release()
        process.kill()
        process.wait()


def pool(tmp_path: Path, **urls: str) -> ServerPool:
    return ServerPool(ServerSettings(kind="url", run_dir=tmp_path, max_concurrency=8, slots=2, **urls))  # type: ignore[arg-type]


def test_what_it_runs_is_read_back_and_it_is_left_alone(tmp_path: Path) -> None:
    with foreign(TREE) as url, foreign() as base:
        with pool(tmp_path, url=url, baseline_url=base) as servers:
            server = servers.get(B8)
            assert server.mismatches(required=["budget", "window", "topk", "verify_width"]) == []
            assert (server.url, server.pid, server.log_path) == (url, None, None)
            assert servers.get(BASELINE).effective.algorithm == "none"
            assert server.running
        with pool(tmp_path, url=url) as again:
            wrong = again.get(Config("tree", 16, 16, 128)).mismatches()
            assert [(m.name, m.asked, m.http) for m in wrong] == [
                ("block_size", 17, 9),
                ("budget", 16, 8),
                ("verify_width", 17, 9),
                ("topk", 16, 8),
            ]


def test_a_baseline_that_speculates_is_named(tmp_path: Path) -> None:
    with foreign(TREE) as url, pool(tmp_path, baseline_url=url) as servers:
        assert [str(m) for m in servers.get(BASELINE).mismatches()] == [
            "algorithm: asked none, HTTP says DDTREE"
        ]


def test_no_address(tmp_path: Path) -> None:
    with (
        pool(tmp_path, url="http://127.0.0.1:9") as servers,
        pytest.raises(ConfigNotSupported, match="--ddtree-baseline-url"),
    ):
        servers.get(BASELINE)


@pytest.mark.parametrize("seconds", [0.5, 1e-6])
def test_nobody_there(tmp_path: Path, seconds: float) -> None:
    """Asked once at least, though the time be over before that."""
    settings = ServerSettings(kind="url", run_dir=tmp_path, url="http://127.0.0.1:9", start_timeout_s=seconds)
    with ServerPool(settings) as servers, pytest.raises(StartFailed, match="ConnectError"):
        servers.get(B8)


def test_faked(tmp_path: Path) -> None:
    with (
        foreign(TREE, info={"speculative_accept_threshold_single": 0.5}) as url,
        pool(tmp_path, url=url) as servers,
        pytest.raises(FakedServer),
    ):
        servers.get(B8)


def test_of_several_servers_the_one_that_runs_the_config(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = TREE.replace("tokens 9", "tokens 17")
    settings = {"kind": "url", "run_dir": tmp_path, "max_concurrency": 8}
    with (
        foreign(TREE) as url,
        foreign(other) as more,
        ServerPool(ServerSettings(**settings, url=url, more_urls=(more,))) as servers,  # type: ignore[arg-type]
    ):
        small, large = servers.get(B8), servers.get(Config("tree", 16, 16, 128))
        assert (small.url, large.url) == (url, more)
        assert small.running
        assert servers.get(Config("tree", 3, 3, 128)).mismatches()[0].http == 9
        # One that is down costs the configs that others run nothing, and is named where it may be the one.
        monkeypatch.setattr(remote, "_ABSENT_S", 0.1)
        gone = ServerSettings(**settings, url="http://127.0.0.1:9", more_urls=(url,))  # type: ignore[arg-type]
        with ServerPool(gone) as fewer:
            assert fewer.get(B8).url == url
            with pytest.raises(StartFailed, match=r"127\.0\.0\.1:9"):
                fewer.get(Config("tree", 16, 16, 128))


def test_a_server_that_was_restarted_behind_our_back(tmp_path: Path) -> None:
    with (
        foreign(TREE, info_after={"count": 1, "info": {"random_seed": 99}}) as url,
        pool(tmp_path, url=url) as servers,
    ):
        server = servers.get(B8)
        watch = IdleWatch(ours=False)
        assert watch.check(server) == []
        with Http(url) as http:
            http.post("/generate", {"text": "x", "sampling_params": {"max_new_tokens": 1}})
        with pytest.raises(
            ServerHangs, match="another process answers than the one that was checked: random_seed changed"
        ):
            watch.check(server)
