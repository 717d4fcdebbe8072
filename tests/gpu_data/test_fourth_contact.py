"""Builds that took turns and clients that took turns on a real GPU: the figures that the docs rest on."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import mean
from typing import Any

import pytest

DATA = Path(__file__).parents[1] / "data"
SEEN: dict[str, Any] = json.loads((DATA / "sglang-0.5.16" / "fourth-contact.json").read_text("utf-8"))


def of(run: str, outcome: str) -> set[str]:
    return {f"{gate['what']}: {gate['metric']}" for gate in SEEN[run]["gates"] if gate["outcome"] == outcome}


def test_the_slow_copy_was_blamed_by_name_and_the_identical_one_was_not() -> None:
    assert of("ab_slow", "regressed") == {"build patched, chain-wnone, all cells together: tok_s"}
    assert of("ab_copy", "regressed") == set()
    assert "build copy, b8-k8-wnone, all cells together: tok_s" in of("ab_copy", "undecided")


@pytest.mark.parametrize("run", ["ab_slow", "ab_copy"])
def test_the_builds_took_turns_on_servers_started_anew_and_answered_alike(run: str) -> None:
    first, second = SEEN[run]["ab"]["builds"]
    speculative = [build for build, config, _, _ in SEEN[run]["starts"] if config != "baseline"]
    assert speculative == [first, second, second, first]
    assert {(build, against, kind) for build, against, kind, *_ in SEEN[run]["verdicts"]} == {
        (first, first, "tie"),
        (second, second, "tie"),
        (second, first, "tie"),
    }


@pytest.mark.parametrize("other", ["sglang", "rust"])
def test_the_clients_agree_within_two_percent(other: str) -> None:
    ours = [loads[0]["tok_s"] for loads in SEEN["clients"]["ours"]]
    theirs = [load["tok_s"] for load in SEEN["clients"][other]]
    assert {load["tokens"] for load in SEEN["clients"][other]} == {40 * 64}
    assert mean(ours) / mean(theirs) == pytest.approx(1.0, abs=0.02)


def test_asking_the_build_is_named_apart_from_the_harness() -> None:
    assert SEEN["sweep"]["overhead"].startswith(
        "harness overhead 4.4% of 242.0 s (probe 20.1 s, start 156.3 s"
    )


def test_a_refusal_by_the_scheduler_is_no_problem_and_a_small_cache_evicts() -> None:
    clauses = SEEN["relations"]["clauses"]
    grammar = clauses["chain-wnone grammar"]
    assert grammar["problems"] == []
    assert "does not support grammar-constrained decoding" in grammar["notes"][0]
    assert clauses["chain-wnone after-eviction"]["verdict"]["kind"] == "tie"
