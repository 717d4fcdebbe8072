"""``assert f(1, 2) == 3`` read as a case: the call's arguments and the value it must give."""

from __future__ import annotations

import ast
import builtins
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from pytest_ddtree.coding.extract.source import quietly
from pytest_ddtree.coding.problems import Case
from pytest_ddtree.coding.sandbox.inner.codec import CodecError, encode

_DEFAULT_REL_TOL: Final = 1e-9


def parsed_asserts(sources: Sequence[str]) -> list[ast.Assert] | None:
    """The assert statements of some sources, None where one does not parse or holds something else."""
    found: list[ast.Assert] = []
    for source in sources:
        tree = quietly(lambda source=source: ast.parse(source))  # type: ignore[misc]
        if tree is None:
            return None
        for statement in tree.body:
            if not isinstance(statement, ast.Assert):
                return None
            found.append(statement)
    return found


def entry_name(asserts: Sequence[ast.Assert], defined: set[str]) -> str:
    """The function that the asserts are about: the one they call most, of those the reference defines.

    `defined` are the reference solution's names; if it is empty, any called name that is no builtin will do.
    """
    names = Counter(
        node.func.id
        for statement in asserts
        for node in ast.walk(statement.test)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    )
    usable = [name for name in names if (name in defined if defined else not hasattr(builtins, name))]
    return max(usable, key=lambda name: names[name], default="")


def case_of(statement: ast.Assert, name: str) -> Case | None:
    """The case that an assert states about calls of `name`, None where it says something else.

    Understood are ``f(...) == literal``, its mirror image, ``is``, and ``math.isclose(f(...), literal)``, with
    literal arguments. `==` compares as Python does, floats approximately; `is` compares exactly.
    """
    test = statement.test
    if isinstance(test, ast.Compare) and len(test.ops) == 1 and isinstance(test.ops[0], (ast.Eq, ast.Is)):
        left, right = test.left, test.comparators[0]
        if not _is_call_of(left, name):
            left, right = right, left
        case, value = _arguments(left, name), _literal(right)
        if case is None or value is None:
            return None
        case = replace(case, expect=value[0], cmp="equal" if isinstance(test.ops[0], ast.Eq) else "exact")
        return case if _crosses(case) else None
    if isinstance(test, ast.Call) and _called(test) == "isclose" and len(test.args) == 2:
        case, value = _arguments(test.args[0], name), _literal(test.args[1])
        tolerance = _tolerance(test, value)
        if case is None or value is None or tolerance is None:
            return None
        case = replace(case, expect=value[0], cmp="approx", atol=tolerance)
        return case if _crosses(case) else None
    return None


def _crosses(case: Case) -> bool:
    """Whether the values of a case can be sent to a solution and come back from one (an Ellipsis cannot, say)."""
    try:
        encode([case.args, case.kwargs, case.expect])
    except CodecError:
        return False
    return True


def _called(call: ast.Call) -> str:
    return str(getattr(call.func, "id", getattr(call.func, "attr", "")))


def _is_call_of(node: ast.expr, name: str) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == name


def _arguments(node: ast.expr, name: str) -> Case | None:
    if not isinstance(node, ast.Call) or not _is_call_of(node, name):
        return None
    args = [_literal(argument) for argument in node.args]
    kwargs = {keyword.arg or "": _literal(keyword.value) for keyword in node.keywords}
    if "" in kwargs or None in args or None in kwargs.values():
        return None
    return Case(
        args=tuple(value[0] for value in args if value is not None),
        kwargs={key: value[0] for key, value in kwargs.items() if value is not None},
    )


def _literal(node: ast.expr) -> tuple[Any] | None:
    """The value of a literal in a tuple of one, None for anything else."""
    try:
        return (ast.literal_eval(node),)
    except (ValueError, TypeError, MemoryError, RecursionError):
        return None


def _tolerance(call: ast.Call, value: tuple[Any] | None) -> float | None:
    """The absolute tolerance at the expected value that math.isclose's keywords stand for."""
    if value is None or isinstance(value[0], bool) or not isinstance(value[0], (int, float)):
        return None
    rel_tol, abs_tol = _DEFAULT_REL_TOL, 0.0
    for keyword in call.keywords:
        given = _literal(keyword.value)
        if given is None or not isinstance(given[0], (int, float)):
            return None
        if keyword.arg == "rel_tol":
            rel_tol = float(given[0])
        elif keyword.arg == "abs_tol":
            abs_tol = float(given[0])
        else:
            return None
    try:
        return max(rel_tol * abs(value[0]), abs_tol)
    except OverflowError:
        return None
