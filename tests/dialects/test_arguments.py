"""What each family's command line says for a config, and which configs it refuses before anything starts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from pytest_ddtree.dialects import registry
from pytest_ddtree.dialects.base import DialectError, LaunchRequest, asked_by_flags, given, value
from pytest_ddtree.dialects.build import Build, flags_of_help
from pytest_ddtree.dialects.effective import UNKNOWN, compare
from pytest_ddtree.grid import BASELINE, Config

RELEASES = {
    "0.5.11": {"--speculative-dflash-draft-window-size", "--cuda-graph-max-bs"},
    "0.5.12": {
        "--speculative-draft-window-size",
        "--speculative-dflash-draft-window-size",
        "--cuda-graph-max-bs",
    },
    "0.5.16": {
        "--speculative-draft-window-size",
        "--speculative-dflash-draft-window-size",
        "--cuda-graph-max-bs",
        "--cuda-graph-max-bs-decode",
    },
    "0.5.23": {"--speculative-draft-window-size", "--cuda-graph-max-bs-decode"},
}
COMMON = {
    "--model-path",
    "--speculative-num-draft-tokens",
    "--speculative-algorithm",
    "--disable-overlap-schedule",
}


def request(release: str = "0.5.23", *more: str, **changes: Any) -> LaunchRequest:
    build = Build(frozenset(RELEASES[release] | COMMON | set(more)))
    base = LaunchRequest(model="/m", draft_model="/d", block_size=16, max_concurrency=32, build=build)
    return replace(base, **changes)


def words(dialect: str, config: Config, req: LaunchRequest) -> str:
    return " ".join(registry.by_name(dialect).arguments(config, req).args)


@pytest.mark.parametrize(
    ("release", "graph", "window", "overlap"),
    [
        ("0.5.11", "--cuda-graph-max-bs", "--speculative-dflash-draft-window-size", False),
        ("0.5.12", "--cuda-graph-max-bs", "--speculative-draft-window-size", False),
        ("0.5.16", "--cuda-graph-max-bs-decode", "--speculative-draft-window-size", True),
        ("0.5.23", "--cuda-graph-max-bs-decode", "--speculative-draft-window-size", True),
    ],
)
def test_upstream_chain_in_each_release(release: str, graph: str, window: str, overlap: bool) -> None:
    off = "" if overlap else " --disable-overlap-schedule"
    assert words("dflash", Config("chain", window=2048, block_size=8), request(release)) == (
        f"--max-running-requests 32 {graph} 32{off} --speculative-draft-model-path /d --speculative-algorithm DFLASH "
        f"--speculative-num-draft-tokens 8 {window} 2048"
    )
    assert words("dflash", BASELINE, request(release)) == f"--max-running-requests 32 {graph} 32{off}"
    assert (
        words("dflash", BASELINE, request(release, baseline="best"))
        == f"--max-running-requests 32 {graph} 32"
    )


def test_upstream_has_no_tree() -> None:
    dialect = registry.by_name("dflash")
    why = dialect.unsupported(Config("tree", 8, 4), request())
    assert why is not None
    assert "--ddtree-budget chain" in why
    assert "--speculative-draft-window-size" in why
    with pytest.raises(DialectError, match="DFlash chain only"):
        dialect.arguments(Config("tree", 8, 4), request())


def test_what_the_user_sets_is_not_set_again() -> None:
    req = request(server_args=("--max-running-requests=8", "--cuda-graph-max-bs-decode", "4"))
    assert words("dflash", BASELINE, req) == ""
    assert registry.by_name("dflash").asked(BASELINE, req).max_running_requests == 8


def test_family_b() -> None:
    req = request("0.5.12", "--speculative-ddtree-budget")
    launch = registry.by_name("B").arguments(Config("tree", 20, 4, 128), req)
    assert " ".join(launch.args) == (
        "--max-running-requests 32 --cuda-graph-max-bs 32 --page-size 1 --disable-overlap-schedule --speculative-draft-model-path /d "
        "--speculative-algorithm DDTREE --speculative-ddtree-budget 20 --speculative-draft-window-size 128"
    )
    assert launch.env["SGLANG_DDTREE_MAX_TOPK"] == "4"
    asked = registry.by_name("B").asked(Config("tree", 20, 4, 128), req)
    assert asked.verify_width == 21
    assert asked.block_size == 16
    assert "--disable-overlap-schedule" in words("B", BASELINE, req)
    assert "--disable-overlap-schedule" not in words("B", BASELINE, replace(req, baseline="best"))
    assert "--page-size 1" in words("B", BASELINE, req)


def test_family_b_reads_back() -> None:
    info = {
        "speculative_algorithm": "DDTREE",
        "speculative_ddtree_budget": 20,
        "speculative_num_draft_tokens": 16,
        "speculative_draft_window_size": 128,
        "disable_overlap_schedule": True,
        "page_size": 1,
        "max_running_requests": 32,
        "internal_states": [{"env_vars": {"SGLANG_DDTREE_MAX_TOPK": "4"}}],
    }
    b = registry.by_name("B")
    req = request("0.5.12", "--speculative-ddtree-budget")
    text = "Initialized DDTree worker. block_size=16, tree_budget=20, max_tree_nodes=21"
    seen = b.effective(info, text)
    assert compare(b.asked(Config("tree", 20, 4, 128), req), seen, required=["topk", "budget"]) == []
    assert (seen.reading("budget").http, seen.reading("budget").log) == (20, 20)
    del info["internal_states"]
    assert [
        m.name
        for m in compare(b.asked(Config("tree", 20, 4, 128), req), b.effective(info, ""), required=["topk"])
    ] == ["topk"]
    info["speculative_ddtree_budget"] = None
    assert b.effective(info, "").budget == 15, "unset it is the block without its root"


def test_family_d_ties_the_block_to_the_budget() -> None:
    req = request("0.5.12", "--speculative-dflash-enable-ddtree")
    d = registry.by_name("D")
    assert words("D", Config("tree", 8, 8), req).endswith(
        "--speculative-algorithm DFLASH --speculative-dflash-enable-ddtree --speculative-num-draft-tokens 9"
    )
    assert d.asked(Config("tree", 8, 9), req).block_size == 9
    for config, word in (
        (Config("tree", 8, 4), "--ddtree-topk 8"),
        (Config("tree", 8, 8, None, 16), "ties the block size"),
    ):
        why = d.unsupported(config, req)
        assert why is not None
        assert word in why


def test_family_a_has_one_topk_a_budget() -> None:
    a = registry.by_name("A")
    req = request("0.5.12", "--speculative-ddtree-budget")
    assert a.unsupported(Config("tree", 30, 3), req) is None, "30 // 15 + 1"
    why = a.unsupported(Config("tree", 30, 4), req)
    assert why is not None
    assert "--ddtree-topk 3" in why
    info = {
        "speculative_algorithm": "DDTREE",
        "speculative_ddtree_budget": 30,
        "speculative_num_draft_tokens": 16,
    }
    assert a.effective(info, "").topk == 3


def test_families_c_e_f_g() -> None:
    tree = Config("tree", 8, 8)
    assert words("C", tree, request("0.5.23", "--speculative-ddtree-budget")).endswith(
        "DDTREE --speculative-ddtree-budget 8"
    )
    e = registry.by_name("E").arguments(Config("tree", 8, 4), request())
    assert " ".join(e.args).endswith(
        "DFLASH --speculative-num-draft-tokens 9 --speculative-eagle-topk 4 --speculative-dflash-block-size 16"
    )
    assert e.env["SGLANG_DFLASH_TREE_VERIFY"] == "1"
    assert words("F", tree, request()).endswith(
        "DFLASH --speculative-dflash-tree-verify --speculative-num-draft-tokens 9 --speculative-eagle-topk 8"
    )
    assert (
        registry.by_name("F").unsupported(Config("tree", 8, 5), request())
        == "this build takes topk 4, 8 or 16, not 5"
    )
    g = registry.by_name("G").arguments(Config("tree", 20, 4), request())
    assert " ".join(g.args).endswith("--speculative-algorithm DFLASH --speculative-dflash-tree-width 4")
    assert g.env["SGLANG_DFLASH_MAX_NUM_NODES"] == "20"
    assert [d.name for d in registry.DIALECTS if not d.tested] == ["A", "C", "E", "F", "G"]


@pytest.mark.parametrize(
    ("flags", "env", "name"),
    [
        (set(), set(), "dflash"),
        ({"--speculative-ddtree-budget"}, set(), "A"),
        ({"--speculative-ddtree-budget"}, {"SGLANG_DDTREE_MAX_TOPK"}, "B"),
        ({"--speculative-ddtree-budget", "--use-tree-attention"}, {"SGLANG_DDTREE_MAX_TOPK"}, "C"),
        ({"--speculative-dflash-enable-ddtree"}, set(), "D"),
        (set(), {"SGLANG_DFLASH_TREE_VERIFY"}, "E"),
        ({"--speculative-dflash-tree-verify"}, set(), "F"),
        ({"--speculative-dflash-tree-width"}, set(), "G"),
    ],
)
def test_recognised_by_probing(flags: set[str], env: set[str], name: str) -> None:
    assert registry.of_build(Build(frozenset(flags), frozenset(env), version="0.0.0.dev0")).name == name


def test_a_window_on_a_build_without_one() -> None:
    req = LaunchRequest(model="m", build=Build(frozenset({"--model-path"})))
    why = registry.by_name("dflash").unsupported(Config("chain", window=128), req)
    assert why == "this build has no flag for the draft window; it has: none"


def test_unknown_dialect_lists_all() -> None:
    with pytest.raises(
        DialectError, match=r"reference, dflash, A, B, C, D, E, F, G, or the path of a \.toml file"
    ):
        registry.by_name("Z")


def test_flags_of_help() -> None:
    text = """usage: x [-h] [--model-path MODEL] --no-x
  --speculative-draft-window-size N  (default: None), see --attention-
  --cuda-graph-bs [N ...]  not---this  a--b"""
    assert flags_of_help(text) >= {
        "--model-path",
        "--speculative-draft-window-size",
        "--cuda-graph-bs",
        "--no-x",
    }
    assert not any(flag.endswith("-") or "---" in flag for flag in flags_of_help(text))
    assert "--b" not in flags_of_help(text)


def test_flags_that_ask_for_knobs() -> None:
    args = (
        "--page-size",
        "16",
        "--page-size=32",
        "--disable-radix-cache",
        "--mem-fraction-static",
        "0.5",
        "--random-seed",
        "x",
    )
    assert asked_by_flags(args) == {
        "page_size": 32,
        "radix_cache": False,
        "mem_fraction": 0.5,
        "seed": UNKNOWN,
    }
    assert asked_by_flags(("--page-size",)) == {}
    assert given(args, "--page-size")
    assert not given(args, "--page")


def test_reference_dialect() -> None:
    reference = registry.by_name("reference")
    req = LaunchRequest(model="", block_size=8)
    assert reference.arguments(BASELINE, req).args == ("--max-running-requests", "48")
    assert " ".join(reference.arguments(Config("tree", 600, 2, 128, 4), req).args) == (
        "--max-running-requests 48 --speculative-algorithm DDTREE --speculative-ddtree-budget 600 --speculative-ddtree-topk 2 "
        "--speculative-draft-window-size 128 --speculative-dflash-block-size 4"
    )
    assert reference.asked(Config("tree", 600, 2, 128, 4), req).verify_width == 2 + 4 + 8 + 1


def test_value_of_an_argument() -> None:
    assert value(("--port", "1", "--port=2", "--portal", "3"), "--port") == "2"
    assert value(("--port",), "--port") is None
