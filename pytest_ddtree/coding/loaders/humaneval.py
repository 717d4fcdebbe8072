"""HumanEval: a Python stub as the prompt and a test that defines ``check(candidate)``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from pytest_ddtree.coding.loaders.values import REQUEST, Faults, python_block
from pytest_ddtree.coding.problems import Problem

_KEYS: Final = frozenset({"task_id", "prompt", "entry_point", "canonical_solution", "test"})


def from_humaneval(record: Mapping[str, Any]) -> Problem:
    """A problem of HumanEval. Raises RecordError."""
    faults = Faults()
    task_id = faults.text(record, "task_id")
    prompt = faults.text(record, "prompt")
    entry_point = faults.text(record, "entry_point")
    test = faults.text(record, "test")
    canonical = faults.text(record, "canonical_solution", "")
    solution = prompt + canonical if canonical.strip() else ""
    if not faults.found:
        if "check" not in test:
            faults.add("test", "does not define check(candidate)")
        else:
            faults.defines("test", test, "check")
        if solution:
            faults.defines("canonical_solution", solution, entry_point)
    faults.raise_if_any()
    return Problem(
        task_id=task_id,
        mode="check",
        entry_point=entry_point,
        prompt=prompt,
        question=completion_question(prompt),
        test=test,
        given=prompt,
        solution=solution,
        shape="humaneval",
        extra={key: value for key, value in record.items() if key not in _KEYS},
    )


def completion_question(stub: str) -> str:
    """A user message that asks to complete a function given as a stub."""
    return f"Complete this Python function.\n\n{python_block(stub)}\n\n{REQUEST}"
