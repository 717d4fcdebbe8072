"""Problems with cases: functions, classes and programs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..sandbox import CodecError, Done, Ended, Missing, Odd, ProgramResult, Raised, Sandbox, Value, decode
from ..sandbox.run import Run, encoded
from .compare import agree
from .faults import ProblemFaultError
from .outcome import Outcome
from .shapes import CaseLike, ProblemLike
from .show import show, show_call, show_text

Unanswered = Odd | Raised | Missing | Ended


def check_functions(problem: ProblemLike, code: str, sandbox: Sandbox) -> Outcome:
    """Calls the entry point once a case, in one process; stops at the first case that is not right."""
    with sandbox.session(code, steps=len(problem.cases)) as (run, loaded):
        if not isinstance(loaded, Done):
            return unanswered(loaded)
        for index, case in enumerate(problem.cases):
            keywords = dict(case.kwargs)
            answer = run.call(
                "call", problem.entry_point, _sent(problem, case.args), _sent(problem, keywords)
            )
            given = show_call(problem.entry_point, case.args, keywords)
            outcome = _judge(problem, answer, index, given, calls=index)
            if outcome is not None:
                return outcome
    return Outcome("pass", calls=len(problem.cases))


def check_classes(problem: ProblemLike, code: str, sandbox: Sandbox) -> Outcome:
    """Builds one object a case and calls its methods in order; compares the list of returned values."""
    steps = sum(1 + len(case.calls) for case in problem.cases)
    answered = 0
    with sandbox.session(code, steps=steps) as (run, loaded):
        if not isinstance(loaded, Done):
            return unanswered(loaded)
        for index, case in enumerate(problem.cases):
            answer = _call_methods(run, problem, case)
            answered += len(case.calls)
            given = _show_calls(problem.entry_point, case)
            outcome = _judge(problem, answer, index, given, calls=answered)
            if outcome is not None:
                return outcome
    return Outcome("pass", calls=answered)


def _call_methods(run: Run, problem: ProblemLike, case: CaseLike) -> list[Any] | Unanswered:
    built = run.step("new", problem.entry_point, _sent(problem, case.args), _sent(problem, case.kwargs))
    if not isinstance(built, Done):
        return built
    values = []
    for name, arguments in case.calls:
        answer = run.call("method", name, _sent(problem, arguments), _sent(problem, {}))
        value = _decoded(answer)
        if isinstance(value, Unanswered):
            return value
        values.append(value)
    return values


def check_programs(problem: ProblemLike, code: str, sandbox: Sandbox) -> Outcome:
    """Runs the program once a case, each time in a process of its own."""
    for index, case in enumerate(problem.cases):
        result = sandbox.run_program(code, case.stdin)
        if isinstance(result, ProgramResult):
            if result.exit_status != 0:
                detail = result.stderr or f"the program ended with exit status {result.exit_status}"
                return Outcome("error", detail, index, show_text(case.stdin), calls=index)
            output = result.stdout.decode("utf-8", "replace").replace("\r\n", "\n")
            if not agree(output, case.expect, case.cmp, case.atol):
                texts = (show_text(case.stdin), show_text(case.expect), show_text(output))
                return Outcome("wrong", "", index, *texts, calls=index + 1)
        elif isinstance(result, Done):
            raise AssertionError("a program answers with its result")
        else:
            return unanswered(result, index, show_text(case.stdin), calls=index)
    return Outcome("pass", calls=len(problem.cases))


def _judge(problem: ProblemLike, answer: Any, index: int, given: str, calls: int) -> Outcome | None:
    """None when the case is right."""
    case = problem.cases[index]
    value = _decoded(answer)
    if isinstance(value, Raised | Missing | Ended):
        return unanswered(value, index, given, calls=calls)
    if not isinstance(value, Odd) and agree(value, case.expect, case.cmp, case.atol):
        return None
    # What no solution could return would make every solution wrong.
    _sent(problem, case.expect)
    got = value.what if isinstance(value, Odd) else show(value)
    return Outcome("wrong", "", index, given, show(case.expect), got, calls=calls + 1)


def _sent(problem: ProblemLike, value: Any) -> bytes:
    """A value of the problem as bytes; raises ProblemFaultError for one that cannot cross."""
    plain = dict(value) if isinstance(value, Mapping) else value
    try:
        return encoded(plain)
    except CodecError as error:
        raise ProblemFaultError(problem.task_id, f"a case holds {error}") from error


def _decoded(answer: Any) -> Any:
    """The value of a Value; bytes that decode to nothing are an odd answer."""
    if not isinstance(answer, Value):
        return answer
    try:
        return decode(answer.encoded)
    except CodecError as error:
        return Odd(f"no value: {error}")


def unanswered(
    result: Unanswered, case: int | None = None, given: str = "", *, calls: int = 0, weak: bool = False
) -> Outcome:
    """The outcome of a run that gave no value to compare."""
    if isinstance(result, Raised):
        return Outcome("error", result.traceback, case, given, calls=calls, weak=weak)
    if isinstance(result, Missing):
        return Outcome(
            "error", f"does not define {result.entry_point!r}", case, given, calls=calls, weak=weak
        )
    if isinstance(result, Odd):
        return Outcome("wrong", "", case, given, got=result.what, calls=calls, weak=weak)
    return Outcome(result.how, result.detail, case, given, calls=calls, weak=weak)


def _show_calls(entry_point: str, case: CaseLike) -> str:
    steps = [show_call(entry_point, case.args, dict(case.kwargs))]
    steps += [show_call(f".{name}", arguments, {}) for name, arguments in case.calls]
    text = "; ".join(steps)
    return text if len(text) <= 2000 else text[:1997] + "..."
