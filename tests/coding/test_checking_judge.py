"""One solution, one verdict: every mode, every outcome, and what is no verdict."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import pytest
from sandbox_battery import Case, Problem

from pytest_ddtree.coding.checking import Outcome, ProblemFaultError, check, grade, no_answer
from pytest_ddtree.coding.checking.judge import _CHECKERS
from pytest_ddtree.coding.sandbox import Limits, Sandbox, SandboxError


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    with Sandbox(Limits(cpu_s=30, wall_s=120, memory_bytes=128 << 20), workers=2) as opened:
        yield opened


@pytest.fixture(scope="module")
def hasty() -> Iterator[Sandbox]:
    """For what never ends: no honest solution is to be as quick on every machine."""
    with Sandbox(Limits(cpu_s=0.5, wall_s=120), workers=1) as opened:
        yield opened


def function(*cases: Case, entry_point: str = "f") -> Problem:
    return Problem("t", "function", entry_point, cases)


def case(*args: Any, expect: Any, cmp: str = "exact", **fields: Any) -> Case:
    return Case(args=args, kwargs=fields.pop("kwargs", {}), expect=expect, cmp=cmp, **fields)


ADD = function(case(1, 2, expect=3), case(5, expect=6, kwargs={"b": 1}), case("a", "b", expect="ab"))


def test_a_right_function_passes(sandbox: Sandbox) -> None:
    assert check(ADD, "def f(a, b): return a + b", sandbox) == Outcome("pass", calls=3)


def test_a_wrong_function_shows_the_case(sandbox: Sandbox) -> None:
    outcome = check(ADD, "def f(a, b): return a + b if a != 5 else 'no'", sandbox)
    assert outcome == Outcome("wrong", "", 1, "f(5, b=1)", "6", "'no'", calls=2)
    assert outcome.describe() == "wrong in case 1\ninput: f(5, b=1)\nexpected: 6\ngot: 'no'"
    assert not outcome.passed


def test_a_value_that_cannot_cross_is_wrong(sandbox: Sandbox) -> None:
    outcome = check(ADD, "def f(a, b): return iter([])", sandbox)
    assert (outcome.status, outcome.got) == ("wrong", "a value of type builtins.list_iterator")


def test_the_name_of_a_type_steers_no_terminal_and_can_be_written(sandbox: Sandbox) -> None:
    liar = "class A: pass\nA.__qualname__ = '\\x1b[2J\\ud800' + 'x' * 99\ndef f(*a): return A()"
    test = Problem("t", "check", "f", test="def check(candidate):\n    assert candidate(1) == 2\n")
    for problem in (ADD, test):
        assert r"solution.\x1b[2J\ud800x" in check(problem, liar, sandbox).got


def test_a_report_has_no_more_of_a_solution_than_one_reads(sandbox: Sandbox) -> None:
    outcome = check(DOUBLE, "import sys\nsys.stderr.write('x' * 50000)\nprint(1 / 0)", sandbox)
    assert outcome.status == "error"
    assert len(outcome.detail) < 10_000
    assert outcome.detail.endswith("ZeroDivisionError: division by zero")


def test_an_exception_is_an_error_with_the_solutions_traceback(sandbox: Sandbox) -> None:
    outcome = check(ADD, "def f(a, b):\n    return a.b", sandbox)
    assert (outcome.status, outcome.case, outcome.given) == ("error", 0, "f(1, 2)")
    assert outcome.detail.splitlines() == [
        '  File "<solution>", line 2, in f',
        "    return a.b",
        "AttributeError: 'int' object has no attribute 'b'",
    ]


def test_a_missing_entry_point_is_an_error(sandbox: Sandbox) -> None:
    assert check(ADD, "def g(a, b): return 1", sandbox).detail == "does not define 'f'"


def test_memory_and_crash(sandbox: Sandbox) -> None:
    assert check(ADD, "def f(a, b): return bytearray(1 << 33)", sandbox).status == "memory"
    outcome = check(ADD, "import os\ndef f(a, b): os._exit(7)", sandbox)
    assert (outcome.status, outcome.detail) == (
        "crash",
        "the process ended with exit status 7 before it answered",
    )
    outcome = check(ADD, "import ctypes\ndef f(a, b): ctypes.string_at(0)", sandbox)
    assert (outcome.status, outcome.detail) == ("crash", "the process was ended by SIGSEGV")


def test_a_timeout_is_run_again_alone(hasty: Sandbox) -> None:
    outcome = check(ADD, "def f(a, b):\n    while True: pass", hasty)
    assert outcome == Outcome("timeout", "more than 0.5 s of CPU time", 0, "f(1, 2)", retried=True)
    assert "second time" in outcome.describe()


def test_the_second_run_decides_and_nothing_runs_beside_it(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first attempt times out for a reason that is gone when it is repeated; another thread keeps checking."""
    attempts: list[str] = []
    inside: list[str] = []
    overlaps: list[str] = []
    real = _CHECKERS["function"]
    second_under_way = threading.Event()

    def flaky(problem: Any, code: str, box: Sandbox) -> Outcome:
        if problem.task_id != "flaky":
            outcome = real(problem, code, box)
            inside.append("other")
            return outcome
        attempts.append("attempt")
        if len(attempts) == 1:
            return Outcome("timeout", "slow machine")
        second_under_way.set()
        before = len(inside)
        outcome = real(problem, code, box)
        if len(inside) > before + 1:
            overlaps.append("another run finished meanwhile")
        return outcome

    monkeypatch.setitem(_CHECKERS, "function", flaky)
    problem = Problem("flaky", "function", "f", ADD.cases * 20)
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(check, problem, "def f(a, b): return a + b", sandbox)
        others = [pool.submit(check, ADD, "def f(a, b): return a + b", sandbox) for _ in range(20)]
        outcome = first.result(120)
        assert all(other.result(120).passed for other in others)
    assert outcome == Outcome("pass", calls=60, retried=True)
    assert len(attempts) == 2
    assert overlaps == []


STACK = Problem(
    "t", "class", "Stack",
    (
        Case((), {}, [("push", (1,)), ("push", (2,)), ("pop", ()), ("size", ())], expect=[None, None, 2, 1]),
        Case((3,), {}, [("size", ())], expect=[0]),
    ),
)  # fmt: skip
RIGHT_STACK = """
class Stack:
    def __init__(self, room=9): self.items = []
    def push(self, x): self.items.append(x)
    def pop(self): return self.items.pop()
    def size(self): return len(self.items)
"""


def test_classes(sandbox: Sandbox) -> None:
    assert check(STACK, RIGHT_STACK, sandbox) == Outcome("pass", calls=5)
    wrong = check(STACK, RIGHT_STACK.replace("self.items.pop()", "self.items.pop(0)"), sandbox)
    assert wrong.describe() == (
        "wrong in case 0\ninput: Stack(); .push(1); .push(2); .pop(); .size()\n"
        "expected: [None, None, 2, 1]\ngot: [None, None, 1, 1]"
    )
    assert check(STACK, RIGHT_STACK.replace("room=9", ""), sandbox).status == "error"
    assert check(STACK, RIGHT_STACK.replace("size", "length"), sandbox).status == "error"
    assert check(STACK, RIGHT_STACK.replace("__init__", "start"), sandbox).status == "error"


def test_a_class_that_answers_to_everything_is_wrong(sandbox: Sandbox) -> None:
    liar = "class Stack:\n    def __init__(self, *a): pass\n    def __getattr__(self, name): return lambda *a: self\n"
    assert check(STACK, liar + "    def __eq__(self, other): return True", sandbox).status == "wrong"


DOUBLE = Problem(
    "t", "stdin", "",
    (Case(stdin="3\n", expect="6\n", cmp="lines"), Case(stdin="10\n", expect="20", cmp="lines")),
)  # fmt: skip


def test_programs(sandbox: Sandbox) -> None:
    assert check(DOUBLE, "print(int(input()) * 2)", sandbox) == Outcome("pass", calls=2)
    wrong = check(DOUBLE, "print(int(input()) + 3)", sandbox)
    assert wrong == Outcome("wrong", "", 1, "'10\\n'", "'20'", "'13\\n'", calls=2)
    error = check(DOUBLE, "print(int(input()) * 2)\n1/0", sandbox)
    assert (error.status, error.detail.splitlines()[-1]) == ("error", "ZeroDivisionError: division by zero")
    assert (
        check(DOUBLE, "print(6)\nraise SystemExit(4)", sandbox).detail
        == "the program ended with exit status 4"
    )
    assert check(DOUBLE, "print(", sandbox).status == "error"
    assert check(DOUBLE, "import os\nos.kill(os.getpid(), 9)\nos.abort()", sandbox).status in (
        "crash",
        "error",
    )


def test_approximate_output(sandbox: Sandbox) -> None:
    problem = Problem("t", "stdin", "", (Case(stdin="", expect="x 0.5", cmp="approx", atol=0.01),))
    assert check(problem, "print('x', 0.505)", sandbox).passed
    assert not check(problem, "print('x', 0.52)", sandbox).passed


CHECK = Problem(
    "t", "check", "double",
    prompt='def helper(x):\n    return x + x\n\ndef double(x):\n    """Twice x."""\n',
    test="import math\ndef check(candidate):\n    assert candidate(2) == helper(2)\n    assert double(-1) == -2\n"
    "    assert math.isclose(candidate(x=0.5), 1.0)\n",
)  # fmt: skip


def test_candidates(sandbox: Sandbox) -> None:
    assert check(CHECK, "def double(x): return x * 2", sandbox) == Outcome("pass", calls=3)
    wrong = check(CHECK, "def double(x): return abs(x) * 2", sandbox)
    assert (wrong.status, wrong.given, wrong.got, wrong.calls) == ("wrong", "double(-1)", "2", 2)
    assert "assert double(-1) == -2" in wrong.detail
    error = check(CHECK, "def double(x): return x.y", sandbox)
    assert (error.status, error.given) == ("error", "double(2)")
    assert "<solution>" in error.detail
    assert check(CHECK, "def other(x): return 1", sandbox).detail == "does not define 'double'"


def test_plain_asserts_are_checked_from_outside_too(sandbox: Sandbox) -> None:
    problem = Problem("t", "check", "double", test="assert double(2) == 4\nassert double('a') == 'aa'\n")
    assert check(problem, "def double(x): return x * 2", sandbox).passed
    assert check(problem, "def double(x): return 4", sandbox).status == "wrong"


def test_a_test_may_expect_an_exception(sandbox: Sandbox) -> None:
    test = "def check(candidate):\n    try:\n        candidate(-1)\n    except ValueError:\n        return\n    assert False\n"
    problem = Problem("t", "check", "root", test=test)
    assert check(problem, "def root(x): raise ValueError('negative')", sandbox).passed
    assert check(problem, "def root(x): return 1", sandbox).status == "wrong"
    assert check(problem, "def root(x): raise KeyError", sandbox).status == "error"


def test_the_solution_cannot_reach_the_test(sandbox: Sandbox) -> None:
    source = "import builtins\nbuiltins.AssertionError = builtins.abs = None\ndef double(x):\n    globals()['check'] = 1\n    return 0"
    assert check(CHECK, source, sandbox).status == "wrong"


def test_a_test_that_runs_forever_is_a_timeout_that_says_so(hasty: Sandbox) -> None:
    problem = Problem(
        "t", "check", "f", test="def check(candidate):\n    while candidate(1): pass\n    while True: pass\n"
    )
    outcome = check(problem, "def f(x): return 0", hasty)
    assert (outcome.status, outcome.detail) == ("timeout", "in the test code: more than 0.5 s of CPU time")


@pytest.mark.slow
def test_a_solution_that_takes_the_time_of_the_whole_test_is_not_called_a_slow_test() -> None:
    problem = Problem("t", "check", "f", test="def check(candidate):\n    while True: candidate(1)\n")
    with Sandbox(Limits(cpu_s=30, wall_s=4), workers=1) as slow:
        outcome = check(problem, "import time\ndef f(x): time.sleep(1.5)", slow)
    assert outcome.status == "timeout"
    assert (
        outcome.detail == "in the test code and the solution's calls together: more than 4 s of elapsed time"
    )


def test_asserts_inside_are_weak(sandbox: Sandbox) -> None:
    problem = Problem(
        "t",
        "asserts",
        "Box",
        test="box = Box(3)\nassert box.value == 3\nbox.value = 4\nassert box.value == 4\n",
    )
    right = "class Box:\n    def __init__(self, value): self.value = value"
    assert check(problem, right, sandbox) == Outcome("pass", weak=True, calls=1)
    wrong = check(problem, right.replace("= value", "= 0"), sandbox)
    assert (wrong.status, wrong.weak) == ("wrong", True)
    assert "assert box.value == 3" in wrong.detail
    assert check(problem, "x = 1", sandbox).status == "error"


@pytest.mark.parametrize(
    ("problem", "what"),
    [
        (Problem("t", "dance", "f"), "unknown mode 'dance'"),
        (Problem("t", "function", "f"), "no cases"),
        (Problem("t", "stdin", ""), "no cases"),
        (Problem("t", "check", "f", test=" \n"), "no test"),
        (function(case(1, expect=1, cmp="fuzzy")), "case 0 has an unknown cmp 'fuzzy'"),
        (function(case(1, expect="x" * (17 << 20))), "a case holds more than"),
        (function(case(object(), expect=1)), "a case holds a value of type builtins.object"),
        (function(case(1, expect={1: iter(())})), "a case holds a value of type builtins.tuple_iterator"),
        (Problem("t", "check", "f", test="def check(candidate): pass"), "never calls"),
        (
            Problem("t", "check", "f", test="def check(candidate): undefined_name"),
            "never calls(.|\n)*NameError",
        ),
        (
            Problem("t", "check", "f", test="def check(candidate): candidate(lambda: 1)"),
            "mode 'asserts' can run it",
        ),
    ],
)
def test_a_faulty_problem_is_no_verdict(sandbox: Sandbox, problem: Problem, what: str) -> None:
    with pytest.raises(ProblemFaultError, match=what) as caught:
        check(problem, "def f(x): return x if type(x) is not int else 'x' * (17 << 20)", sandbox)
    assert caught.value.task_id == "t"


def test_a_fault_of_the_sandbox_is_no_verdict() -> None:
    with pytest.raises(SandboxError):
        check(ADD, "def f(a, b): return a + b", Sandbox())


@dataclass(frozen=True)
class Extracted:
    code: str | None
    status: str


def test_grading_passes_the_extraction_status_through(sandbox: Sandbox) -> None:
    assert grade(ADD, Extracted("def f(a, b): return a + b", "ok"), sandbox).passed
    assert grade(ADD, Extracted(None, "unclosed_thinking"), sandbox) == no_answer("unclosed_thinking")
    assert grade(ADD, Extracted("def f(a, b): return a + b", "truncated"), sandbox) == no_answer("truncated")
    assert no_answer("refusal").status == "no_answer"
