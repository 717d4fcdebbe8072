"""One solution, one verdict."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from ..sandbox import Sandbox
from .candidates import check_asserts, check_candidate
from .cases import check_classes, check_functions, check_programs
from .compare import MODES
from .faults import ProblemFaultError
from .outcome import Outcome
from .shapes import ExtractionLike, ProblemLike

_CHECKERS: Final[dict[str, Callable[[ProblemLike, str, Sandbox], Outcome]]] = {
    "function": check_functions,
    "class": check_classes,
    "stdin": check_programs,
    "check": check_candidate,
    "asserts": check_asserts,
}
_WITH_CASES: Final = frozenset({"function", "class", "stdin"})


def check(problem: ProblemLike, code: str, sandbox: Sandbox) -> Outcome:
    """Runs `code` against the problem.

    A timeout counts only when a second run, with nothing else running in this sandbox, times out as well.
    Raises SandboxError when the sandbox fails and ProblemFaultError when the problem cannot be judged;
    neither is a verdict.
    """
    checker = _checker(problem)
    outcome = checker(problem, code, sandbox)
    if outcome.status != "timeout":
        return outcome
    with sandbox.alone():
        return checker(problem, code, sandbox).after_timeout()


def grade(problem: ProblemLike, extraction: ExtractionLike, sandbox: Sandbox) -> Outcome:
    """Like check, for what was extracted from a response; without code the outcome is no_answer."""
    if extraction.code is None or extraction.status != "ok":
        return no_answer(extraction.status)
    return check(problem, extraction.code, sandbox)


def no_answer(status: str) -> Outcome:
    """The outcome of a response without an answer; `status` is the extraction's."""
    return Outcome("no_answer", status)


def _checker(problem: ProblemLike) -> Callable[[ProblemLike, str, Sandbox], Outcome]:
    if problem.mode not in _CHECKERS:
        known = ", ".join(_CHECKERS)
        raise ProblemFaultError(problem.task_id, f"unknown mode {problem.mode!r}; known: {known}")
    if problem.mode in _WITH_CASES:
        if not problem.cases:
            raise ProblemFaultError(problem.task_id, "it has no cases, so that every solution would pass")
        for index, case in enumerate(problem.cases):
            if case.cmp not in MODES:
                raise ProblemFaultError(problem.task_id, f"case {index} has an unknown cmp {case.cmp!r}")
    elif not problem.test.strip():
        raise ProblemFaultError(problem.task_id, "it has no test, so that every solution would pass")
    return _CHECKERS[problem.mode]
