"""A local SGLang: what the probe finds decides how it is spoken to, and which sources run is known."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pytest_ddtree.dialects.effective import differences
from pytest_ddtree.grid import BASELINE, Config
from pytest_ddtree.servers import ports, source
from pytest_ddtree.servers.errors import ConfigNotSupported, ServerDied, SetupRefused, StartFailed
from pytest_ddtree.servers.local import LocalBackend
from pytest_ddtree.servers.pool import ServerPool

from . import support


def backend_pool(tmp_path: Path, script: dict[str, Any], **changes: Any) -> tuple[ServerPool, LocalBackend]:
    settings = support.settings(tmp_path / "run", script, max_concurrency=8, **changes)
    backend = LocalBackend(settings)
    return ServerPool(settings, backend=backend), backend


def test_family_d_from_probe_to_effective_config(tmp_path: Path) -> None:
    script = {
        "flags": ["--speculative-draft-window-size"],
        "switches": ["--speculative-dflash-enable-ddtree"],
    }
    pool, backend = backend_pool(tmp_path, script)
    with pool:
        tree = pool.get(Config("tree", 8, 8, 128))
        assert backend.dialect.name == "D"
        assert backend.probed.source is not None
        assert tree.mismatches(required=["budget", "topk", "window", "block_size"]) == []
        assert pool.get(BASELINE).mismatches(required=["overlap", "max_running_requests"]) == []
        assert len(pool.starts) == 2, "the probe is no start"


def test_best_baseline_keeps_its_overlap(tmp_path: Path) -> None:
    pool, _ = backend_pool(tmp_path, {})
    with pool:
        matched = pool.get(BASELINE)
        assert matched.effective.overlap is False
        best = pool.get(BASELINE, variant="best")
        assert best is not matched
        assert best.effective.overlap is True
        assert [(s.variant, s.reason) for s in pool.starts] == [("matched", None), ("best", "best-baseline")]


def test_family_b_needs_its_sources_to_be_known(tmp_path: Path) -> None:
    checkout = tmp_path / "checkout"
    shutil.copytree(support.FAKE, checkout, ignore=shutil.ignore_patterns("__pycache__"))
    (checkout / "sglang" / "environ.py").write_text('NAMES = ["SGLANG_DDTREE_MAX_TOPK"]\n')
    script = {"flags": ["--speculative-ddtree-budget", "--speculative-draft-window-size"]}
    pool, backend = backend_pool(tmp_path, script, sglang_src=checkout)
    with pool:
        server = pool.get(Config("tree", 8, 4))
        assert backend.dialect.name == "B"
        assert server.effective.budget == 8
        environment = Path(f"/proc/{server.pid}/environ").read_bytes().split(b"\0")
        assert b"SGLANG_DDTREE_MAX_TOPK=4" in environment
        assert b"SPT_NOENV=1" in environment
        assert [m.name for m in server.mismatches(required=["topk"])] == ["topk"], "this build does not say"


def test_dialect_by_hand(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    tree = "--speculative-algorithm MYTREE --speculative-ddtree-budget {budget}"
    file.write_text(f'tree = "{tree}"\n[read]\nbudget = {{field="speculative_ddtree_budget"}}\n')
    pool, _ = backend_pool(tmp_path, {}, dialect=str(file))
    with pool:
        assert pool.get(Config("tree", 5, 2)).effective.budget == 5
    pool, _ = backend_pool(tmp_path, {}, dialect="Q")
    with pool, pytest.raises(ConfigNotSupported, match="no dialect 'Q'"):
        pool.get(BASELINE)


def test_help_that_fails(tmp_path: Path) -> None:
    checkout = tmp_path / "checkout"
    (checkout / "sglang").mkdir(parents=True)
    (checkout / "sglang" / "__init__.py").write_text("")
    (checkout / "sglang" / "launch_server.py").write_text("import torch_that_is_not_there\n")
    pool, _ = backend_pool(tmp_path, {}, sglang_src=checkout)
    with pool, pytest.raises(StartFailed) as caught:
        pool.get(BASELINE)
    assert caught.value.why == "ModuleNotFoundError: No module named 'torch_that_is_not_there'"


def test_draft_that_was_trained_otherwise(tmp_path: Path) -> None:
    draft = tmp_path / "draft"
    draft.mkdir()
    layers = ["sliding_attention"] * 2
    (draft / "config.json").write_text(
        json.dumps({"block_size": 8, "sliding_window": 2048, "layer_types": layers})
    )
    script = {"flags": ["--speculative-draft-window-size"]}
    pool, _ = backend_pool(tmp_path, script, draft_model=str(draft), block_size=None)
    with pool:
        server = pool.get(Config("chain"))
        assert server.warnings == ("draft window none, but the drafter was trained with 2048",)
        assert server.asked.block_size == 8


def git(folder: Path, *words: str) -> None:
    subprocess.run(
        ["git", "-C", str(folder), "-c", "user.name=x", "-c", "user.email=x@example.org", *words],
        check=True,
        capture_output=True,
    )


@pytest.mark.skipif(shutil.which("git") is None, reason="no git on this host")
def test_two_patched_trees_are_told_apart(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("x = 1\n")
    assert source.state(tmp_path).revision is None or source.state(tmp_path).path == tmp_path
    git(tmp_path, "init", "-q", "-b", "main")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-q", "-m", "x")
    clean = source.state(tmp_path)
    assert clean.revision is not None
    assert (clean.branch, clean.dirty, clean.label) == ("main", False, clean.revision[:12])
    (tmp_path / "a.py").write_text("x = 2\n")
    first = source.state(tmp_path)
    (tmp_path / "new.py").write_text("y = 1\n")
    second = source.state(tmp_path)
    assert first.dirty
    assert first.label.startswith(f"{clean.label}+")
    assert len({clean.label, first.label, second.label}) == 3
    assert source.state(tmp_path) == second


@pytest.mark.skipif(shutil.which("git") is None, reason="no git on this host")
def test_a_package_that_lies_in_a_checkout_of_something_else(tmp_path: Path) -> None:
    """A virtual environment in a project's folder: the project's revision says nothing of the engine that is installed there."""
    git(tmp_path, "init", "-q")
    (tmp_path / ".gitignore").write_text(".venv\n")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-q", "-m", "x")
    for folder in (".venv", "other"):
        package = tmp_path / folder / "site-packages" / "sglang"
        package.mkdir(parents=True)
        (package / "a.py").write_text("x = 1\n")
        assert source.state(package) == source.SourceState(package)


@pytest.mark.skipif(shutil.which("git") is None, reason="no git on this host")
def test_a_change_that_git_does_not_show_is_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ["a.py", "b.py"]
    for name in names:
        (tmp_path / name).write_text(f"# {name}\n")
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-q", "-m", "x")
    (tmp_path / "a.py").write_text("x = 2\n")
    (tmp_path / "neu\u00e9.py").write_text("y = 1\n")
    plain = source.state(tmp_path)
    monkeypatch.setenv("GIT_EXTERNAL_DIFF", "false")
    assert source.state(tmp_path) == plain, "how the user likes to see diffs changes no hash"
    (tmp_path / "neu\u00e9.py").write_text("y = 2\n")
    assert source.state(tmp_path).diff_sha256 != plain.diff_sha256
    # A partial clone without its network.
    for path in (tmp_path / ".git" / "objects").glob("??/*"):
        if (
            b"blob"
            in subprocess.run(
                ["git", "-C", str(tmp_path), "cat-file", "-t", path.parent.name + path.name],
                capture_output=True,
                check=True,
            ).stdout
        ):
            path.unlink()
    unknown = source.state(tmp_path)
    assert (unknown.dirty, unknown.diff_sha256) == (True, None)
    assert unknown.label.endswith("+?")


def test_what_cannot_run_is_known_before_anything_starts(tmp_path: Path) -> None:
    script = {"flags": [], "switches": ["--speculative-dflash-enable-ddtree"]}
    pool, _ = backend_pool(tmp_path, script)
    with pool:
        found = pool.unsupported(
            [
                BASELINE,
                Config("chain"),
                Config("tree", 8, 8),
                Config("tree", 8, 4),
                Config("chain", None, None, 9),
            ]
        )
        assert pool.starts == []
    assert {config.id: why.split(":")[0] for config, why in found.items()} == {
        "b8-k4-wnone": "this build has no topk",
        "chain-w9": "this build has no flag for the draft window; it has",
    }


def test_several_nodes_come_and_go_together(tmp_path: Path) -> None:
    prefixes = (("env", "NODE=0"), ("env", "NODE=1"), ("nice", "-n", "1"))
    pool, _ = backend_pool(
        tmp_path, {}, node_prefixes=prefixes, server_args=("--dist-init-addr", "127.0.0.1:5000")
    )
    with pool:
        server = pool.get(BASELINE)
        assert server.info["nnodes"] == 3
        assert server.info["node_rank"] == 0
        log = tmp_path / "run" / "logs" / "baseline-1-node2.log"
        assert support.eventually(lambda: "node 2 of 3" in log.read_text())
        assert len([line for line in support.alive(tmp_path / "run").values() if "--node-rank" in line]) == 3
        pool.stop(BASELINE)
        assert support.alive(tmp_path / "run") == {}


def test_one_node_that_ends_ends_the_server(tmp_path: Path) -> None:
    ends = tmp_path / "end"
    pool, _ = backend_pool(
        tmp_path,
        {"node_ends_at": str(ends)},
        node_prefixes=((), ("env", "A=1")),
        server_args=("--dist-init-addr", "127.0.0.1:5000"),
    )
    with pool:
        server = pool.get(BASELINE)
        ends.touch()
        assert support.eventually(lambda: not server.running)
        with pytest.raises(ServerDied, match="exit code 7"):
            server.check_alive()
    assert support.alive(tmp_path / "run") == {}


def test_several_nodes_need_an_address(tmp_path: Path) -> None:
    pool, _ = backend_pool(tmp_path, {}, node_prefixes=((), ()))
    with pool, pytest.raises(ConfigNotSupported, match="--dist-init-addr"):
        pool.get(BASELINE)


def test_the_users_port_host_and_name(tmp_path: Path) -> None:
    # No port of the range from which the kernel gives others theirs meanwhile.
    hold = ports.PortHold.low("0.0.0.0")
    hold.release()
    args = ("--host", "0.0.0.0", f"--port={hold.port}", "--served-model-name", "mine")
    pool, _ = backend_pool(tmp_path, {}, server_args=args)
    with pool:
        server = pool.get(BASELINE)
        assert server.url == f"http://127.0.0.1:{hold.port}"
        assert server.info["host"] == "0.0.0.0"
        assert str(server.info["served_model_name"]).startswith("ddtree-baseline-"), (
            "what proves that it is ours"
        )


def test_a_matched_baseline_has_the_speculative_servers_conditions(tmp_path: Path) -> None:
    own = "--attention-backend fa3 --mem-fraction-static=0.7 --disable-radix-cache --disable-overlap-schedule"
    pool, _ = backend_pool(tmp_path, {}, seed=5, spec_args=(*own.split(), "--page-size", "16"))
    with pool:
        chain = pool.get(Config("chain")).effective
        matched = pool.get(BASELINE)
        required = ["attention_backend", "mem_fraction", "radix_cache", "seed"]
        assert matched.mismatches(required=required) == []
        assert differences(chain, matched.effective) == []
        best = pool.get(BASELINE, variant="best").effective
    named = [str(one) for one in differences(chain, best)]
    assert named[:3] == [
        "attention_backend: fa3 against triton",
        "page_size: 16 against 1",
        "radix_cache: off against on",
    ]


def test_what_the_user_gives_the_baseline_wins(tmp_path: Path) -> None:
    pool, _ = backend_pool(
        tmp_path,
        {},
        server_args=("--page-size", "16", "--disable-overlap-schedule"),
        spec_args=("--page-size", "16", "--attention-backend", "fa3"),
        baseline_args=("--attention-backend", "triton", "--max-running-requests", "4"),
    )
    with pool:
        baseline = pool.get(BASELINE)
        assert baseline.mismatches(required=["attention_backend", "page_size", "max_running_requests"]) == []
        assert (baseline.effective.attention_backend, baseline.effective.max_running_requests) == (
            "triton",
            4,
        )
        assert pool.get(BASELINE, variant="best") is baseline, "equal command lines need one start"


def test_builds_that_take_turns_are_asked_once_each(tmp_path: Path) -> None:
    checkout = tmp_path / "checkout"
    shutil.copytree(support.FAKE, checkout, ignore=shutil.ignore_patterns("__pycache__"))

    def asked() -> int:
        settings = support.settings(tmp_path / "run", {}, sglang_src=checkout)
        said: list[str] = []
        backend = LocalBackend(settings, progress=said.append)
        try:
            assert backend.probed.build.has("--model-path")
        finally:
            backend.close()
        return sum("asking the build" in text for text in said)

    assert asked() == 1
    assert asked() == 0, "its files are as they were"
    (checkout / "sglang" / "launch_server.py").touch()
    assert asked() == 1, "an edited build may take other flags"


def test_an_interpreter_that_runs_another_package_is_refused(tmp_path: Path) -> None:
    """Else the installed engine is measured under the name of the patched one, and nothing has changed."""
    checkout = tmp_path / "checkout"
    shutil.copytree(support.FAKE, checkout, ignore=shutil.ignore_patterns("__pycache__"))
    wrapper = tmp_path / "python"
    wrapper.write_text(f'#!/bin/sh\nexec env PYTHONPATH={support.FAKE} {sys.executable} "$@"\n')
    wrapper.chmod(0o755)
    pool, _ = backend_pool(tmp_path, {}, sglang_src=checkout, python=str(wrapper))
    with pool, pytest.raises(SetupRefused, match="is not what would run") as caught:
        pool.get(BASELINE)
    assert str(support.FAKE / "sglang") in caught.value.what
    (tmp_path / "link").symlink_to(checkout)
    pool, backend = backend_pool(tmp_path, {}, sglang_src=tmp_path / "link")
    with pool:
        assert backend.probed.build.has("--model-path"), "a link to the checkout is the checkout"
