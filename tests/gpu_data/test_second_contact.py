"""What planted faults, healthy servers and noise floors looked like on a real GPU: the figures that the docs and the rule rest on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

FILE = Path(__file__).parents[1] / "data" / "sglang-0.5.16" / "second-contact.json"
SEEN: dict[str, Any] = json.loads(FILE.read_text("utf-8"))
FAULTY = ("siblings", "positions", "mask-by-block", "accepts-too-many", "slot-always", "slot-once")


@pytest.mark.parametrize("name", FAULTY)
def test_every_planted_fault_was_found_at_level_full(name: str) -> None:
    (verdict,) = [found for run in SEEN["faults"][name] for found in run["verdicts"]]
    assert (verdict["kind"], verdict["level"]) == ("corrupt", "full")
    assert "gap" in verdict["criteria"]


def test_level_self_tells_the_healthy_tree_from_broken_ones() -> None:
    kinds = {
        name: [verdict["kind"] for run in SEEN["faults"][name] for verdict in run["verdicts"]]
        for name in ("self-b8", "self-siblings", "self-mask-by-block")
    }
    assert kinds == {"self-b8": ["tie"], "self-siblings": ["corrupt"], "self-mask-by-block": ["corrupt"]}


@pytest.mark.parametrize("name", ["release-chain", "fork-b8", "draft16"])
def test_healthy_answers_were_ties(name: str) -> None:
    assert {verdict["kind"] for run in SEEN["faults"][name] for verdict in run["verdicts"]} == {"tie"}


def test_only_a_dense_bf16_floor_is_quiet() -> None:
    """Experts and an 8-bit cache have gaps beyond 1 nat against themselves; a bf16 dense model never had one."""
    worst = {
        name: max(row["largest_nats"][0] for rows in contexts.values() for row in rows)
        for name, contexts in SEEN["floors"]["floors"].items()
    }
    assert all(worst[name] < 0.7 for name in ("plain", "chunk512", "det")), worst
    assert all(worst[name] > 3 for name in ("moe", "fp8")), worst


def test_deterministic_inference_makes_one_server_agree_with_itself_but_not_with_a_speculative_one() -> None:
    floors, compared = SEEN["floors"]["floors"]["det"], SEEN["floors"]["compared"]
    for rows in floors.values():
        assert {row["equal_to_serial"] for row in rows} == {"32 of 32"}
    for pair, plain, other in (("det=det-chain", "det", "det-chain"), ("fdet=det-b8", "fdet", "det-b8")):
        assert compared[pair][f"{plain}@8"]["equal"] == "48 of 48"
        assert compared[pair][f"{other}@1"]["equal"] == compared[pair][f"{other}@8"]["equal"] == "25 of 48"
