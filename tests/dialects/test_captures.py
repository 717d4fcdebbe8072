"""Real answers and logs of a dialect-D server: the parser says exactly what these files say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pytest_ddtree.dialects import faked, registry
from pytest_ddtree.dialects.base import LaunchRequest
from pytest_ddtree.dialects.build import Build
from pytest_ddtree.dialects.effective import UNKNOWN, EffectiveConfig, compare, differences, table
from pytest_ddtree.dialects.registry import of_server
from pytest_ddtree.grid import BASELINE, Config

DATA = Path(__file__).parents[1] / "data" / "sglang-ddtree-fork"
D = registry.by_name("D")
TREE = Config("tree", 8, 8, 128)
CHAIN = Config("chain")
REQUEST = LaunchRequest(model="/models/target", draft_model="/models/draft", block_size=8, max_concurrency=48)


def info(name: str) -> dict[str, Any]:
    data: dict[str, Any] = json.loads((DATA / f"{name}.server_info.json").read_text())
    return data


def log(name: str) -> str:
    return (DATA / f"{name}.server.log").read_text()


def effective(name: str) -> EffectiveConfig:
    return D.effective(info(name), log(name))


def sources(config: EffectiveConfig, knob: str) -> tuple[Any, Any]:
    reading = config.reading(knob)
    return reading.http, reading.log


def test_tree() -> None:
    seen = effective("tree8w")
    assert sources(seen, "algorithm") == ("DDTREE", UNKNOWN)
    assert seen.budget == 8, "from 9 draft tokens"
    assert seen.topk == 8
    assert sources(seen, "block_size") == (9, 9)
    assert seen.verify_width == 9
    assert sources(seen, "window") == (128, 128)
    assert sources(seen, "compact_cache") == (UNKNOWN, True)
    assert sources(seen, "max_running_requests") == (48, 48)
    assert sources(seen, "overlap") == (False, False)
    assert sources(seen, "attention_backend") == ("triton", UNKNOWN)
    assert sources(seen, "draft_attention_backend") == (UNKNOWN, "triton")
    assert sources(seen, "cuda_graph") == (True, True)
    assert sources(seen, "max_total_tokens") == (10921547, 10921547)
    assert sources(seen, "context_length") == (UNKNOWN, 16384)
    assert seen.page_size == 1
    assert seen.radix_cache is True
    assert seen.get("mem_fraction") == 0.3
    assert seen.get("seed") == 320828854
    assert seen.warnings == (
        "DFLASH block size mismatch: using speculative_num_draft_tokens=9 but draft config block_size=8.",
        (
            "Max running requests is reset to 48 for speculative decoding. You can override this by explicitly setting "
            "--max-running-requests."
        ),
    )


def test_chain_shows_that_the_window_is_off() -> None:
    seen = effective("chain")
    assert seen.algorithm == "DFLASH"
    assert seen.budget is UNKNOWN
    assert sources(seen, "block_size") == (8, 8)
    assert seen.verify_width == 8
    assert sources(seen, "window") == (None, None)
    assert sources(seen, "compact_cache") == (UNKNOWN, False)
    assert not any("mismatch" in warning for warning in seen.warnings)


def test_baseline() -> None:
    seen = effective("base")
    assert seen.algorithm == "none"
    assert seen.window is UNKNOWN
    assert seen.block_size is UNKNOWN
    assert sources(seen, "max_running_requests") == (4096, 4096)
    assert sources(seen, "overlap") == (True, UNKNOWN)
    assert seen.warnings == ()


@pytest.mark.parametrize(("name", "config"), [("tree8w", TREE), ("chain", CHAIN)])
def test_as_asked(name: str, config: Config) -> None:
    assert (
        compare(D.asked(config, REQUEST), effective(name), required=["window", "compact_cache", "block_size"])
        == []
    )


def test_the_silent_48_is_found() -> None:
    asked = D.asked(TREE, LaunchRequest(model="m", max_concurrency=64))
    assert [(m.name, m.asked, m.http, m.log) for m in compare(asked, effective("tree8w"))] == [
        ("max_running_requests", 64, 48, 48)
    ]


def test_a_window_that_everybody_believed_was_on() -> None:
    asked = D.asked(Config("chain", window=2048), REQUEST)
    wrong = compare(asked, effective("chain"))
    assert [str(mismatch) for mismatch in wrong] == [
        "window: asked 2048, HTTP says none, the log says none",
        "compact_cache: asked on, the log says off",
    ]


def test_a_tree_that_is_a_chain() -> None:
    wrong = {m.name for m in compare(D.asked(TREE, REQUEST), effective("chain"), required=["budget", "topk"])}
    assert {"algorithm", "block_size", "verify_width", "window", "compact_cache", "budget", "topk"} == wrong


def test_baseline_conditions_differ_from_the_speculative_server() -> None:
    asked = D.asked(BASELINE, REQUEST)
    assert {m.name for m in compare(asked, effective("base"))} == {"max_running_requests", "overlap"}


@pytest.mark.parametrize("name", ["base", "chain", "tree8w"])
def test_recognised_and_not_faked(name: str) -> None:
    assert of_server(info(name)) is D
    assert faked.after_start(info(name)) == []


def test_table_has_every_knob_once_in_order() -> None:
    rows = table(D.asked(TREE, REQUEST), effective("tree8w"))
    names = [row.name for row in rows]
    assert names[:7] == [
        "algorithm",
        "block_size",
        "budget",
        "verify_width",
        "topk",
        "window",
        "compact_cache",
    ]
    assert len(names) == len(set(names))
    assert all(row.ok for row in rows)


def test_json_holds_known_values_alone() -> None:
    data = json.loads(json.dumps(effective("chain").to_json()))
    assert data["knobs"]["window"] == {"http": None, "log": None}
    assert data["knobs"]["compact_cache"] == {"log": False}
    assert "budget" not in data["knobs"]


def test_conditions_in_which_the_captured_baseline_differs() -> None:
    found = differences(effective("tree8w"), effective("base"))
    assert [str(difference) for difference in found] == [
        "overlap: off against on",
        "max_running_requests: 48 against 4096",
        "max_total_tokens: 10921547 against 14562062",
        "seed: 320828854 against 944166818",
    ]
    assert [difference.name for difference in differences(effective("tree8w"), effective("chain"))] == [
        "seed"
    ]


BUDGET = {
    "speculative_algorithm": "DDTREE",
    "speculative_ddtree_budget": 8,
    "speculative_num_draft_tokens": 8,
}


@pytest.mark.parametrize(
    ("fields", "variables", "dialect", "topk"),
    [
        (BUDGET, {}, "A", 2),
        (BUDGET, {"SGLANG_DDTREE_MAX_TOPK": "4"}, "B", 4),
        ({**BUDGET, "use_tree_attention": True}, {}, "C", 8),
        (
            {
                "speculative_algorithm": "DFLASH",
                "speculative_num_draft_tokens": 9,
                "speculative_eagle_topk": 4,
            },
            {"SGLANG_DFLASH_TREE_VERIFY": "1"},
            "E",
            4,
        ),
        ({**BUDGET, "speculative_ddtree_topk": 4}, {}, "reference", 4),
    ],
)
def test_families_that_share_their_fields(
    fields: dict[str, Any], variables: dict[str, str], dialect: str, topk: int
) -> None:
    """A server that somebody else runs: the formula of A for topk was held against a healthy B."""
    said = {**fields, "internal_states": [{"env_vars": variables}]}
    assert of_server(said).name == dialect
    assert of_server(said).effective(said, "").topk == topk


@pytest.mark.parametrize("asked", [64, 65])
def test_requests_are_shared_out_under_dp_attention(asked: int) -> None:
    """Each scheduler says what it takes alone, to HTTP and to its log."""
    said = {"enable_dp_attention": True, "dp_size": 2, "max_running_requests": asked}
    said["internal_states"] = [{"effective_max_running_requests_per_dp": 32}] * 2
    line = "max_total_num_tokens=1000, max_running_requests={}, context_len=40"
    assert sources(D.effective(said, line.format(32)), "max_running_requests") == (asked, asked)
    assert sources(D.effective(said, line.format(16)), "max_running_requests") == (asked, 32)
    alone = {**said, "enable_dp_attention": False}
    assert sources(D.effective(alone, line.format(32)), "max_running_requests") == (32, 32)


REAL = DATA.parent


@pytest.mark.parametrize(
    ("folder", "name", "dialect", "config"),
    [
        ("sglang-0.5.16", "base", "dflash", BASELINE),
        ("sglang-0.5.16", "chain", "dflash", CHAIN),
        ("sglang-0.5.16", "chain-w128", "dflash", Config("chain", window=128)),
        ("sglang-0.0.0.dev0", "b7-k7-wnone", "D", Config("tree", 7, 7)),
        ("sglang-0.0.0.dev0", "b8-k8-w128", "D", TREE),
    ],
)
def test_servers_on_a_gpu_run_what_was_asked(folder: str, name: str, dialect: str, config: Config) -> None:
    """Release 0.5.16 and a fork: the dialect is recognised from flags and answers alike, and every knob is confirmed."""
    answer = json.loads((REAL / folder / f"{name}.server_info.json").read_text())
    flags = frozenset(json.loads((REAL / folder / "flags.json").read_text()))
    assert registry.of_build(Build(flags)).name == of_server(answer).name == dialect
    speaker = registry.by_name(dialect)
    asked = speaker.asked(
        config, LaunchRequest(model="m", block_size=8, max_concurrency=64, build=Build(flags))
    )
    seen = speaker.effective(answer, (REAL / folder / f"{name}.server.log").read_text())
    knobs = set(asked.readings) & {
        "algorithm",
        "block_size",
        "budget",
        "topk",
        "window",
        "compact_cache",
        "max_running_requests",
    }
    wrong = compare(asked, seen, required=knobs)
    assert wrong == []
