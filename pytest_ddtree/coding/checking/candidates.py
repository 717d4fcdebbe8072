"""Problems with test code: `check(candidate)` from outside the solution, or asserts inside it."""

from __future__ import annotations

import ast

from ..sandbox import CodecError, Done, Ended, Examined, Odd, Raised, Sandbox, Value, decode
from .cases import unanswered
from .faults import ProblemFaultError
from .outcome import Outcome
from .shapes import ProblemLike
from .show import show, show_call


def check_candidate(problem: ProblemLike, code: str, sandbox: Sandbox) -> Outcome:
    """Runs the test in a process that never holds the solution. Raises ProblemFaultError for a test that
    calls nothing or passes values that cannot be sent.
    """
    prelude = problem.prompt if _is_python(problem.prompt) else ""
    result = sandbox.examine(code, problem.entry_point, prelude=prelude, test=problem.test)
    if not isinstance(result, Examined):
        if isinstance(result, Done):
            raise AssertionError("an examination has a verdict")
        return unanswered(result)
    if result.verdict == "uncrossable":
        raise ProblemFaultError(
            problem.task_id, f"its test passes {result.detail}; mode 'asserts' can run it"
        )
    if result.calls == 0 and result.verdict in ("passed", "failed"):
        raise ProblemFaultError(
            problem.task_id, f"its test never calls the candidate. {result.detail}".strip()
        )
    return _outcome(problem.entry_point, result)


def check_asserts(problem: ProblemLike, code: str, sandbox: Sandbox) -> Outcome:
    """Runs the test in the solution's process: weaker, and marked so."""
    result = sandbox.run_asserts(code, problem.entry_point, problem.test)
    if isinstance(result, Done):
        return Outcome("pass", weak=True, calls=1)
    if isinstance(result, Raised) and result.type_name == "AssertionError":
        return Outcome("wrong", result.traceback, weak=True, calls=1)
    return unanswered(result, weak=True)


def _outcome(entry_point: str, result: Examined) -> Outcome:
    given, got = _last_call(entry_point, result)
    calls = result.calls
    if result.verdict == "passed":
        return Outcome("pass", calls=calls)
    if result.verdict in ("timeout", "memory", "crash"):
        return Outcome(result.verdict, result.detail, given=given, calls=calls)
    if isinstance(result.answer, Raised) and result.exception != "AssertionError":
        return Outcome("error", result.answer.traceback, given=given, calls=calls)
    return Outcome("wrong", result.detail, given=given, got=got, calls=calls)


def _last_call(entry_point: str, result: Examined) -> tuple[str, str]:
    if not result.calls:
        return "", ""
    given = show_call(entry_point, decode(result.arguments), decode(result.keywords))
    if isinstance(result.answer, Value):
        try:
            return given, show(decode(result.answer.encoded))
        except CodecError as error:
            return given, f"no value: {error}"
    if isinstance(result.answer, Odd):
        return given, result.answer.what
    if isinstance(result.answer, Ended):
        return given, result.answer.detail
    return given, ""


def _is_python(text: str) -> bool:
    try:
        ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return True
