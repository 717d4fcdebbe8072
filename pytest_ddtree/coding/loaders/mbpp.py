"""MBPP: a sentence as the prompt and a few asserts as the test."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from typing import Any, Final

from pytest_ddtree.coding.extract.names import bound_names, module_statements
from pytest_ddtree.coding.extract.source import quietly
from pytest_ddtree.coding.loaders.asserts import case_of, entry_name, parsed_asserts
from pytest_ddtree.coding.loaders.values import REQUEST, Faults, python_block
from pytest_ddtree.coding.problems import Problem

_KEYS: Final = frozenset(
    {
        "task_id",
        "text",
        "prompt",
        "code",
        "test_list",
        "test_setup_code",
        "test_imports",
        "challenge_test_list",
    }
)


def from_mbpp(record: Mapping[str, Any]) -> Problem:
    """A problem of MBPP, full or sanitized. Raises RecordError.

    Asserts that compare a call with a literal become cases, judged outside of the sandbox. Where one of a
    problem's asserts says something else, or needs set-up code, all of them run in the sandbox instead.
    """
    faults = Faults()
    task_id = mbpp_id(faults, record)
    text = faults.text(record, "prompt" if "prompt" in record else "text")
    tests = _texts(faults, record, "test_list")
    hidden = _texts(faults, record, "challenge_test_list") if record.get("challenge_test_list") else []
    setup = "\n".join(
        [*_texts(faults, record, "test_imports", False), faults.text(record, "test_setup_code", "")]
    )
    solution = faults.text(record, "code", "")
    faults.raise_if_any()
    asserts = parsed_asserts([*tests, *hidden])
    entry_point = "" if asserts is None else entry_name(asserts, defined_names(solution))
    if not entry_point:
        faults.add("test_list", "the function that the asserts are about cannot be told")
    elif solution:
        faults.defines("code", solution, entry_point)
    faults.raise_if_any()
    cases = [case_of(statement, entry_point) for statement in asserts or ()]
    whole = not any(line for line in setup.splitlines() if line and not line.startswith(("import ", "from ")))
    plain = whole and all(case is not None for case in cases)
    return Problem(
        task_id=task_id,
        mode="function" if plain else "asserts",
        entry_point=entry_point,
        prompt=text,
        question=assert_question(text, tests),
        cases=tuple(case for case in cases if case is not None) if plain else (),
        test="" if plain else "\n".join([setup.strip(), *tests, *hidden]).strip() + "\n",
        solution=solution,
        shape="mbpp",
        extra={key: value for key, value in record.items() if key not in _KEYS},
    )


def mbpp_id(faults: Faults, record: Mapping[str, Any]) -> str:
    """The task id: MBPP's own are integers, written as ``Mbpp/2`` like EvalPlus does."""
    task_id = record.get("task_id")
    if isinstance(task_id, int) and not isinstance(task_id, bool):
        return f"Mbpp/{task_id}"
    return faults.text(record, "task_id")


def assert_question(text: str, tests: list[str]) -> str:
    """The user message: the sentence and the asserts, which give the function's name."""
    asserts = python_block("\n".join(test.strip() for test in tests))
    return f"{text.strip()}\n\nThe code must pass these tests:\n\n{asserts}\n\n{REQUEST}"


def defined_names(source: str) -> set[str]:
    """Module-level names that some source binds; none if it does not parse."""
    tree = quietly(lambda: ast.parse(source))
    if tree is None:
        return set()
    return {name for statement in module_statements(tree.body) for name in bound_names(statement)}


def _texts(faults: Faults, record: Mapping[str, Any], key: str, required: bool = True) -> list[str]:
    value = record.get(key, [])
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        faults.add(key, "must be a list of texts")
        return []
    if required and not value:
        faults.add(key, "is empty")
    return value
