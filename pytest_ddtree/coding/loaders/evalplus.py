"""HumanEval+ and MBPP+: inputs without outputs; the reference solution says what is expected."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from typing import Any, Final

from pytest_ddtree.coding.extract.source import quietly
from pytest_ddtree.coding.loaders.asserts import case_of, parsed_asserts
from pytest_ddtree.coding.loaders.humaneval import completion_question, from_humaneval
from pytest_ddtree.coding.loaders.mbpp import mbpp_id
from pytest_ddtree.coding.loaders.values import REQUEST, Faults, is_tolerance
from pytest_ddtree.coding.problems import Problem

_KEYS: Final = frozenset(
    {
        "task_id",
        "prompt",
        "entry_point",
        "canonical_solution",
        "test",
        "base_input",
        "plus_input",
        "atol",
        "assertion",
    }
)
_TOLERANCE: Final = 1e-6


def from_evalplus(record: Mapping[str, Any]) -> Problem:
    """A problem of HumanEval+ or MBPP+. Raises RecordError.

    JSON knows no tuples and sets. MBPP+ states a few calls as Python asserts besides: the types of their
    arguments are given to the JSON inputs. Values are compared with ==, numbers approximately, as the set itself does.

    Where the base test never asserts anything about a call directly, several outputs are right (a root of a
    polynomial, say) and the reference's own would be one of many: then that test is used, not the inputs.
    """
    test = record.get("test")
    if isinstance(test, str) and test.strip() and not _asserts_calls(test):
        return from_humaneval(
            {key: value for key, value in record.items() if key not in ("base_input", "plus_input")}
        )
    faults = Faults()
    task_id = mbpp_id(faults, record)
    prompt = faults.text(record, "prompt")
    entry_point = faults.text(record, "entry_point")
    canonical = faults.text(record, "canonical_solution")
    inputs = [*_inputs(faults, record, "base_input"), *_inputs(faults, record, "plus_input")]
    atol = record.get("atol", 0) or _TOLERANCE
    if not is_tolerance(atol):
        faults.add("atol", "must be a number of at least 0")
    if not faults.found and not inputs:
        faults.add("base_input", "is empty, and so is plus_input")
    completes = prompt.lstrip().startswith(("def ", "from ", "import ", "class ", "@", "#"))
    solution = prompt + canonical if completes else canonical
    if not faults.found:
        faults.defines("canonical_solution", solution, entry_point)
    faults.raise_if_any()
    examples = _examples(record.get("assertion"), entry_point)
    typed = tuple(_typed_like(arguments, examples) for arguments in inputs)
    return Problem(
        task_id=task_id,
        mode="function",
        entry_point=entry_point,
        prompt=prompt,
        question=completion_question(prompt) if completes else _sentence_question(prompt),
        inputs=typed,
        given=prompt if completes else "",
        solution=solution,
        cmp="equal",
        atol=float(atol),
        shape="evalplus",
        extra={key: value for key, value in record.items() if key not in _KEYS},
    )


def _sentence_question(prompt: str) -> str:
    """MBPP+ prompts are a docstring with the sentence and an assert in it."""
    return f"{prompt.strip().strip(chr(34)).strip()}\n\n{REQUEST}"


def _asserts_calls(test: str) -> bool:
    """Whether a check(candidate) asserts something about a call of the candidate itself."""
    tree = quietly(lambda: ast.parse(test))
    if tree is None:
        return True
    asserts = [node for node in ast.walk(tree) if isinstance(node, ast.Assert)]
    return not asserts or any(
        isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "candidate"
        for statement in asserts
        for node in ast.walk(statement.test)
    )


def _inputs(faults: Faults, record: Mapping[str, Any], key: str) -> list[Sequence[Any]]:
    value = record.get(key)
    if value is None or value == {}:
        return []
    if not isinstance(value, list) or not all(isinstance(item, list) for item in value):
        faults.add(key, "must be a list of argument lists")
        return []
    return value if all(faults.crosses(key, item) for item in value) else []


def _examples(assertion: Any, entry_point: str) -> list[tuple[Any, ...]]:
    """Arguments of the calls that a set's own asserts make, with Python's types."""
    asserts = parsed_asserts([assertion]) if isinstance(assertion, str) else None
    cases = [case_of(statement, entry_point) for statement in asserts or ()]
    return [case.args for case in cases if case is not None]


def _typed_like(arguments: Sequence[Any], examples: Sequence[tuple[Any, ...]]) -> tuple[Any, ...]:
    example = next((known for known in examples if len(known) == len(arguments)), None)
    if example is None:
        return tuple(arguments)
    return tuple(retyped(value, known) for value, known in zip(arguments, example, strict=True))


def retyped(value: Any, example: Any) -> Any:
    """A JSON value with the tuples, sets and number keys that an example of the same argument has."""
    if isinstance(value, list) and isinstance(example, (list, tuple, set, frozenset)):
        known = list(example)
        if known and all(type(item) is type(known[0]) for item in known):
            items = [retyped(item, known[0]) for item in value]
        elif len(known) == len(value):
            items = [retyped(item, like) for item, like in zip(value, known, strict=True)]
        else:
            items = value
        if isinstance(example, (set, frozenset)) and any(isinstance(item, (list, dict)) for item in items):
            return value  # no set can hold it, so it is not what the example is
        return type(example)(items)
    if isinstance(value, dict) and isinstance(example, dict) and example:
        key_like, item_like = next(iter(example.items()))
        return {_retyped_key(key, key_like): retyped(item, item_like) for key, item in value.items()}
    return value


def _retyped_key(key: str, example: Any) -> Any:
    if isinstance(example, (int, float)) and not isinstance(example, bool):
        try:
            return type(example)(key)
        except ValueError:
            return key
    return key
