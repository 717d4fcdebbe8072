"""A baseline with GPUs of its own: it stays up beside the speculative servers, each on what it was given."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

from pytest_ddtree.grid import BASELINE, Config
from pytest_ddtree.serving import Servers

from . import support

B8 = Config("tree", 8, 4, 128)
B16 = Config("tree", 16, 4, 128)


def test_the_baseline_keeps_its_place(tmp_path: Path) -> None:
    with support.pool(tmp_path, gpus=("0",), baseline_gpus=("2", "3")) as pool:
        base = pool.get(BASELINE)
        first = pool.get(B8)
        second = pool.get(B16)
        assert base.running
        assert second.running
        assert not first.running
        assert [start.reason for start in pool.starts] == [None, None, None]
        visible = {server.config.id: server.current.env["CUDA_VISIBLE_DEVICES"] for server in (base, second)}
        assert visible == {"baseline": "2,3", B16.id: "0"}
    assert support.alive(tmp_path) == {}


def test_two_baselines_take_turns_on_their_gpus(tmp_path: Path) -> None:
    with support.pool(tmp_path, baseline_gpus=("1",), gpus=("0",), spec_args=("--page-size", "1")) as pool:
        tree = pool.get(B8)
        matched = pool.get(BASELINE)
        best = pool.get(BASELINE, variant="best")
        assert best is not matched, "the speculative server's page size is not the baseline's own"
        assert tree.running
        assert best.running
        assert not matched.running
        assert best.current.env["CUDA_VISIBLE_DEVICES"] == "1"
        serving = Servers(SimpleNamespace(settings=SimpleNamespace(api_key=None, server="sglang")))  # type: ignore[arg-type]
        serving._pool, serving._handles[BASELINE] = pool, best
        serving.report_fault(BASELINE, "it hangs")
        assert best.broken, "the one that was had last"
        assert pool.get(BASELINE, "rescore") is matched
        assert tree.running
        assert not best.running


def test_all_of_its_gpus_are_locked(tmp_path: Path) -> None:
    with support.pool(tmp_path, gpus=("0",), baseline_gpus=("1",)) as pool:
        pool.get(B8)
        backend = pool._backend
        assert backend is not None
        assert len(set(backend.gpus)) == 2
