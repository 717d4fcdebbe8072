"""Starts and stops that go well: one handle a config, one start a config, reasons for every other one, nothing left alive."""

from __future__ import annotations

import json
import signal
from dataclasses import replace
from pathlib import Path

import pytest

from pytest_ddtree.dialects.build import Build
from pytest_ddtree.dialects.effective import UNKNOWN
from pytest_ddtree.dialects.reference import ReferenceDialect
from pytest_ddtree.grid import BASELINE, Config
from pytest_ddtree.servers.errors import (
    ConfigEnded,
    FakedServer,
    GpuBusy,
    PoolClosed,
    ServerDied,
    ServerHangs,
)
from pytest_ddtree.servers.local import LocalBackend
from pytest_ddtree.servers.pool import ServerPool

from . import support

B8 = Config("tree", 8, 4)
B16 = Config("tree", 16, 4, 128)


def test_one_handle_and_one_start_a_config(tmp_path: Path) -> None:
    news: list[str] = []
    settings = support.settings(tmp_path)
    with ServerPool(
        settings, backend=LocalBackend(settings, ReferenceDialect(), Build()), progress=news.append
    ) as pool:
        base = pool.get(BASELINE)
        assert pool.get(BASELINE) is base
        tree = pool.get(B8)
        assert not base.running
        assert tree.running
        assert pool.servers == (tree,)
        assert pool.get(BASELINE, "rescore") is base
        assert [(s.config, s.reason, s.ok) for s in pool.starts] == [
            (BASELINE, None, True),
            (B8, None, True),
            (BASELINE, "rescore", True),
        ]
        assert base.log_path == tmp_path / "logs" / "baseline-3.log"
        assert base.start_no == 3
    assert any("extra start (rescore)" in line for line in news)
    assert support.alive(tmp_path) == {}


def test_a_second_pool_of_a_folder_goes_on_counting(tmp_path: Path) -> None:
    settings = support.settings(tmp_path)
    logs = []
    for before in (0, 2):
        backend = LocalBackend(settings, ReferenceDialect(), Build())
        with ServerPool(settings, backend=backend, starts_before=before) as pool:
            server = pool.get(B8)
            assert server.start_no == before + 1
            logs.append(server.log_path)
    assert [log.name for log in logs] == [f"{B8.id}-1.log", f"{B8.id}-3.log"]
    assert all(log.exists() for log in logs)


def test_two_slots_keep_the_baseline(tmp_path: Path) -> None:
    with support.pool(tmp_path, slots=2) as pool:
        base = pool.get(BASELINE)
        first = pool.get(B8)
        assert base.running
        second = pool.get(B16)
        assert base.running
        assert not first.running
        assert set(pool.servers) == {base, second}
    assert support.alive(tmp_path) == {}


def test_effective_config_is_read_back(tmp_path: Path) -> None:
    with support.pool(tmp_path, {"info": {"speculative_num_draft_tokens": 8}}) as pool:
        server = pool.get(B16)
        assert server.effective.budget == 16
        assert server.effective.topk == 4
        assert server.effective.window == 128
        assert server.effective.verify_width == 17
        assert server.effective.source("budget") == "http"
        assert server.mismatches(required=["budget", "topk", "window"]) == []


def test_a_flag_that_did_not_arrive_is_named(tmp_path: Path) -> None:
    with support.pool(
        tmp_path, {"info": {"speculative_ddtree_budget": 7, "speculative_draft_window_size": None}}
    ) as pool:
        wrong = pool.get(B16).mismatches(required=["budget", "compact_cache"])
    assert [(m.name, m.asked, m.http) for m in wrong] == [
        ("budget", 16, 7),
        ("window", 128, None),
        ("compact_cache", True, UNKNOWN),
    ]
    assert str(wrong[0]) == "budget: asked 16, HTTP says 7"


def test_best_baseline_with_equal_flags_is_the_same_server(tmp_path: Path) -> None:
    with support.pool(tmp_path) as pool:
        assert pool.get(BASELINE, variant="best") is pool.get(BASELINE)
        assert len(pool.starts) == 1


def test_death_in_use_is_one_restart_then_the_end(tmp_path: Path) -> None:
    # As a real server dies: its scheduler fails, and it kills its own processes.
    text = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB\nkill_process_tree called"
    script = {"crash": {"at": "run", "text": text, "signal": int(signal.SIGKILL)}}
    with support.pool(tmp_path, script) as pool:
        server = pool.get(B8)
        _provoke(server.url)
        assert support.eventually(lambda: not server.running)
        with pytest.raises(ServerDied, match="CUDA out of memory") as caught:
            server.check_alive()
        assert caught.value.log_path == server.log_path
        assert "ended while it was in use (killed by SIGKILL)" in str(caught.value)
        assert pool.get(B8) is server
        assert pool.starts[-1].reason == "restart-after-death"
        _provoke(server.url)
        assert support.eventually(lambda: not server.running)
        with pytest.raises(ConfigEnded, match="failed 2 times") as end:
            pool.get(B8)
        assert end.value.what.endswith(
            "first it ended (killed by SIGKILL), then it ended (killed by SIGKILL)"
        )
        with pytest.raises(ConfigEnded):
            pool.get(B8)
        assert len(pool.starts) == 2
        assert pool.get(BASELINE).running
    assert support.alive(tmp_path) == {}


def test_reported_hang_is_replaced(tmp_path: Path) -> None:
    with support.pool(tmp_path) as pool:
        server = pool.get(B8)
        first = server.pid
        pool.report_fault(B8, "no answer within 60 s")
        with pytest.raises(ServerHangs, match="no answer within 60 s"):
            server.check_alive()
        pool.get(B8)
        assert server.pid != first
        server.check_alive()
        assert [s.reason for s in pool.starts] == [None, "restart-after-death"]


def test_close_is_final_and_repeatable(tmp_path: Path) -> None:
    pool = support.pool(tmp_path)
    pool.get(B8)
    pool.close()
    pool.close()
    with pytest.raises(PoolClosed):
        pool.get(B8)
    assert support.alive(tmp_path) == {}


def test_a_closed_pool_that_never_started_anything_made_no_file(tmp_path: Path) -> None:
    support.pool(tmp_path).close()
    assert list(tmp_path.iterdir()) == []


def test_log_begins_with_the_command_and_hides_the_key(tmp_path: Path) -> None:
    with support.pool(tmp_path, api_key="secret-key") as pool:
        text = pool.get(B8).log_path
        assert text is not None
        head = text.read_text().splitlines()[0]
    assert "-m sglang.launch_server" in head
    assert "--speculative-ddtree-budget 8" in head
    assert "secret-key" not in head


def test_settings_are_values(tmp_path: Path) -> None:
    settings = support.settings(tmp_path)
    assert replace(settings, slots=3).servers_at_once == 3
    assert replace(settings, kind="reference").servers_at_once == 2
    assert settings.servers_at_once == 1


def _provoke(url: str) -> None:
    import httpx

    body = {"text": "x", "sampling_params": {"max_new_tokens": 1, "temperature": 0}}
    with httpx.Client(trust_env=False) as client, pytest.raises(httpx.HTTPError):
        client.post(f"{url}/generate", content=json.dumps(body))


def test_what_failed_once_is_not_tried_again(tmp_path: Path) -> None:
    """Neither the start of one config nor what all of them need."""
    script = {"info": {"speculative_accept_threshold_acc": 0.5}}
    with support.pool(tmp_path / "faked", script) as pool:
        for _ in range(2):
            with pytest.raises(FakedServer):
                pool.get(B8)
        assert len(pool.starts) == 1
    with support.pool(tmp_path / "a", gpus=("0",)) as holder:
        holder.get(BASELINE)
        news: list[str] = []
        settings = support.settings(tmp_path / "b", gpus=("0",), lock_timeout_s=0.2)
        backend = LocalBackend(settings, ReferenceDialect(), Build(), progress=news.append)
        with ServerPool(settings, backend=backend) as pool:
            for config in (BASELINE, B8, B16):
                with pytest.raises(GpuBusy):
                    pool.get(config)
        assert len([line for line in news if "waiting for GPU" in line]) == 1, "one wait for all"
