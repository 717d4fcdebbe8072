"""The whole contract, sweeps, two GPUs, a baseline apart and kills on a real GPU: the figures that the docs rest on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pytest_ddtree.servers import logs
from pytest_ddtree.servers.idle import canary

DATA = Path(__file__).parents[1] / "data"
SEEN: dict[str, Any] = json.loads((DATA / "sglang-0.5.16" / "third-contact.json").read_text("utf-8"))


@pytest.mark.parametrize(
    ("run", "failed"),
    [
        ("contract-b8", {"penalties", "truncation", "grammar", "full"}),
        ("contract-chain", {"penalties", "truncation", "grammar", "full", "eos-in-run"}),
    ],
)
def test_the_contract_found_what_the_engine_ignores_and_nothing_else(run: str, failed: set[str]) -> None:
    """But for `grammar`, which took a refusal by the scheduler for a fault then, and no longer does."""
    found = SEEN["runs"][run]
    assert found["errors"] == []
    assert len(found["failed"]) == len(failed)
    assert all(any(word in test for test in found["failed"]) for word in failed)
    (truncated,) = [verdict for verdict in found["verdicts"] if verdict["clause"] == "truncation"]
    (greedy,) = [verdict for verdict in found["verdicts"] if verdict["clause"] is None]
    assert (truncated["kind"], greedy["kind"]) == ("corrupt", "tie")


def test_a_few_wrong_keys_among_thousands_do_not_show_in_the_answers() -> None:
    """SGLang's own canary saw each of them; its log is what the plugin reads."""
    assert [SEEN["runs"][name]["verdicts"][0]["kind"] for name in ("canary-kv", "canary-slot")] == ["tie"] * 2
    log = (DATA / "sglang-0.5.16" / "canary.server.log").read_text()
    assert "perturb real_kv_used" in log
    assert len(canary(log)) == 1
    assert canary((DATA / "sglang-0.5.16" / "chain.server.log").read_text()) == []


def test_two_groups_found_what_one_gpu_found() -> None:
    one, two = SEEN["one_gpu"], SEEN["two_groups"]
    assert {name.partition("@")[0] for name in two["verdicts"]} == set(one["verdicts"])
    assert {cell for cell in two["cells"] if "@group1" not in cell} == set(one["cells"])
    for name, verdicts in one["verdicts"].items():
        assert [found[:2] for found in two["verdicts"][name]] == [found[:2] for found in verdicts]
    for run in (one, two):
        assert set(map(tuple, run["mismatches"].values())) == {()}


def test_a_baseline_apart_judges_at_level_full_without_a_start_of_its_own() -> None:
    run = SEEN["baseline_apart"]
    assert [(config, reason) for config, reason, _ in run["starts"]] == [
        ("baseline", None),
        ("b7-k7-wnone", None),
        ("b8-k8-wnone", None),
    ]
    assert {tuple(found[:2]) for verdicts in run["verdicts"].values() for found in verdicts} == {
        ("tie", "full")
    }


@pytest.mark.parametrize(("how", "code"), [("SIGKILL", -9), ("SIGINT", 2), ("two", -9)])
def test_nothing_was_left_of_servers_that_were_answering(how: str, code: int) -> None:
    first, *later = SEEN["killed"][how]
    assert first["seen"]
    assert first["ours_on_gpu"], "they held memory when the signal came"
    assert (later[-1]["left"], later[-1]["on_gpu"], later[-1]["pytest_exit"]) == (0, [], code)


def test_a_padded_twin_answers_as_the_original_does() -> None:
    compared = SEEN["padded"]["against_the_original"]["compared"]["fbase=pad"]
    floor = SEEN["padded"]["against_the_original"]["floors"]["fbase"]["200"]
    for rows in ("pad@1", "pad@8"):
        assert compared[rows]["largest_nats"] <= max(one["largest_nats"][0] for one in floor)
        assert compared[rows]["off"] / compared[rows]["tokens"] < 2 * max(one["share"] for one in floor)


def test_the_floor_of_two_gpus_is_that_of_one() -> None:
    worst = [
        (row["share"], row["largest_nats"][0])
        for rows in SEEN["tensor_parallel"]["floors"]["tp2"].values()
        for row in rows
    ]
    assert max(share for share, _ in worst) < 0.012
    assert max(nats for _, nats in worst) < 0.5
    assert SEEN["runs"]["tp2"]["verdicts"][0]["kind"] == "tie"


def test_a_full_card_is_named() -> None:
    log = (DATA / "sglang-0.0.0.dev0" / "oom.server.log").read_text()
    cause = logs.classify(log)
    assert cause is not None
    assert cause.name == "out of memory"
    assert logs.root_cause(log) == "torch.AcceleratorError: CUDA error: out of memory"


def test_the_log_of_two_ranks_is_read_like_that_of_one() -> None:
    log = (DATA / "sglang-0.0.0.dev0" / "b8-tp2.server.log").read_text()
    assert "TP1" in log
    assert (
        logs.phase(log.partition("fired up and ready to roll!")[0] + "fired up and ready to roll!") == "ready"
    )
