"""Expected values from a reference solution, had in the sandbox."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from pytest_ddtree.coding.checking import ProblemFaultError, check
from pytest_ddtree.coding.expected import with_expected
from pytest_ddtree.coding.problems import Case, Problem
from pytest_ddtree.coding.sandbox import Sandbox

SOLUTION = "def scale(xs, by):\n    return [x * by for x in xs]\n"
PROBLEM = Problem(
    task_id="x/1",
    mode="function",
    entry_point="scale",
    prompt="p",
    question="q",
    solution=SOLUTION,
    inputs=tuple(([i, 0.5], 2) for i in range(130)),
    cmp="approx",
    atol=1e-6,
)


DEEP: list[object] = []
for _ in range(99):
    DEEP = [DEEP]


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    with Sandbox() as opened:
        yield opened


def test_every_input_becomes_a_case(sandbox: Sandbox) -> None:
    problem = with_expected(PROBLEM, sandbox)
    assert problem.inputs == ()
    assert problem.cases[3] == Case(args=([3, 0.5], 2), expect=[6, 1.0], cmp="approx", atol=1e-6)
    assert len(problem.cases) == 130
    assert check(problem, SOLUTION, sandbox).status == "pass"
    assert check(problem, "def scale(xs, by):\n    return xs\n", sandbox).status == "wrong"


def test_inputs_that_no_solution_can_be_given_are_a_fault_of_the_problem(sandbox: Sandbox) -> None:
    with pytest.raises(ProblemFaultError, match="an input holds nested more than"):
        with_expected(replace(PROBLEM, inputs=(([1], 2), (DEEP, 2))), sandbox)


def test_a_problem_with_cases_stays_as_it_is(sandbox: Sandbox) -> None:
    problem = replace(PROBLEM, inputs=(), cases=(Case(args=([1], 2), expect=[2]),))
    assert with_expected(problem, sandbox) is problem


@pytest.mark.parametrize(
    ("solution", "message"),
    [
        ("def scale(xs, by):\n    return xs[5]\n", "fails on input 1"),
        ("def scale(xs, by):\n    return [] if xs[0] < 120 else xs[9]\n", "fails on input 121"),
        ("def scale(xs, by):\n    return object()\n", "fails on input 1"),
        ("def other():\n    pass\n", "fails on input 1"),
        ("raise ValueError('no')\n", r"fails on input 1: error\n.*\n.*\nValueError: no$"),
    ],
)
def test_a_reference_that_fails_is_a_fault_of_the_problem(
    sandbox: Sandbox, solution: str, message: str
) -> None:
    with pytest.raises(ProblemFaultError, match=message):
        with_expected(replace(PROBLEM, solution=solution), sandbox)
