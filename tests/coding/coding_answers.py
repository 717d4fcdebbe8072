"""Answers and verdicts for tests of what pairs of them mean: real values, made by hand."""

from __future__ import annotations

from typing import Any

from pytest_ddtree.client.records import Record, Request, Sampling
from pytest_ddtree.coding.checking import Outcome
from pytest_ddtree.coding.extract import extract
from pytest_ddtree.coding.pairs import Pair, Solved
from pytest_ddtree.exactness.verdict import Verdict, VerdictKind

CODE = "```python\ndef f():\n    return 1\n```\n"


def record(ids: tuple[int, ...] = (1, 2, 3), text: str = CODE, finish: str = "stop", **more: Any) -> Record:
    request = Request(sampling=Sampling(max_new_tokens=100), input_ids=(9,), tag="p")
    reason = {"type": finish}
    return Record(
        request=request,
        outcome="ok",
        sent_ns=0,
        end_ns=1,
        output_ids=ids,
        text=text,
        finish_reason=reason,
        **more,
    )


def solved(
    status: str = "pass", ids: tuple[int, ...] = (1, 2, 3), text: str = CODE, finish: str = "stop"
) -> Solved:
    """An answer; `status` is an outcome's, or "truncated"."""
    answer = record(ids, text, finish)
    if status == "truncated":
        extraction = extract("thinking", entry_point="f", finish_reason="length")
        return Solved(
            problem="p", record=answer, extraction=extraction, outcome=Outcome("no_answer", "truncated")
        )
    extraction = extract(text, entry_point="f", finish_reason=finish)
    return Solved(problem="p", record=answer, extraction=extraction, outcome=Outcome(status))  # type: ignore[arg-type]


def verdict(kind: VerdictKind) -> Verdict:
    return Verdict(
        kind=kind, level="full", config="b8-k4-wnone", prompts=1, identical=0, tokens=50, off=1, largest=0.1,
        gap_limit=1.0, floor_largest=0.1, floor_share=0.01, floor_tokens=1000, p_share=1.0,
    )  # fmt: skip


def pair(base: str, other: str, kind: VerdictKind | None = "tie", **more: Any) -> Pair:
    """Answers of different tokens, unless the verdict is `exact`."""
    ids = (1, 2, 3) if kind == "exact" else (1, 2, 4)
    finish = {"truncated": "length"}
    return Pair(
        baseline=solved(base, finish=finish.get(base, "stop")),
        other=solved(other, ids, CODE if kind == "exact" else CODE + "!", finish=finish.get(other, "stop")),
        verdict=None if kind is None else verdict(kind),
        **more,
    )
