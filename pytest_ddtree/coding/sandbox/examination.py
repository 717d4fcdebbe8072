"""Test code in one child, the candidate in another, every call carried by the checker in between."""

from __future__ import annotations

import secrets
from typing import Any

from .limits import Limits
from .results import CallResult, Done, Ended, Examined, Missing, Odd, Raised, StepResult, Value
from .run import Run, RunOver
from .zygote_process import ZygoteProcess

_MANY_CALLS = 1000


def examine(
    zygote: ZygoteProcess, limits: Limits, source: str, entry_point: str, prelude: str, test: str
) -> Examined | StepResult:
    """Loads `source` and lets `test` call its entry point.

    A solution that does not load or lacks the entry point is the result itself. The examination as a whole
    has one wall limit, and the test's own child one CPU limit.
    """
    with Run(zygote, limits, _MANY_CALLS) as solution:
        loaded = solution.step("load", source)
        if not isinstance(loaded, Done):
            return loaded
        with Run(zygote, limits, 1) as test_run:
            return _Examination(test_run, solution, entry_point).hold(prelude, test)


class _Examination:
    def __init__(self, test_run: Run, solution: Run, entry_point: str) -> None:
        self._test_run = test_run
        self._solution = solution
        self._entry_point = entry_point
        self._calls = 0
        self._arguments = self._keywords = b""
        self._answer: CallResult | None = None

    def hold(self, prelude: str, test: str) -> Examined | Missing:
        budget = self._test_run.budget()
        request = ("examine", secrets.randbits(62), prelude, test, self._entry_point)
        try:
            self._test_run.send(request, budget)
            while True:
                kind, _, *rest = self._test_run.receive(budget)
                if kind != "ask":
                    return self._verdict(kind, rest)
                answer = self._ask(*rest)
                if isinstance(answer, Missing):
                    return answer
                if isinstance(answer, Ended):
                    return self._examined(answer.how, answer.detail)
                # On a busy machine the next question is always there before anybody waits for it, and waits are what time is kept by.
                self._test_run.refuse_late(budget)
                self._test_run.send(_carried(answer), budget)
        except RunOver as over:
            # Elapsed time is that of both: the test waits while the solution works.
            both = self._calls and budget.elapsed
            where = "in the test code and the solution's calls together" if both else "in the test code"
            return self._examined(over.ended.how, f"{where}: {over.ended.detail}")

    def _ask(self, arguments: bytes, keywords: bytes) -> CallResult:
        self._calls += 1
        self._arguments, self._keywords = arguments, keywords
        self._answer = self._solution.call("call", self._entry_point, arguments, keywords)
        return self._answer

    def _verdict(self, kind: str, rest: list[Any]) -> Examined:
        if kind == "passed":
            return self._examined("passed", "")
        if kind == "failed":
            return self._examined("failed", rest[1], rest[0])
        if kind == "uncrossable":
            return self._examined("uncrossable", rest[0])
        return self._examined("memory", "in the test code: the memory limit was reached")

    def _examined(self, verdict: Any, detail: str, exception: str = "") -> Examined:
        return Examined(
            verdict, detail, exception, self._calls, self._arguments, self._keywords, self._answer
        )


def _carried(answer: Value | Raised | Odd) -> tuple[object, ...]:
    if isinstance(answer, Value):
        return ("value", answer.encoded)
    if isinstance(answer, Raised):
        return ("raised", answer.type_name, answer.traceback)
    return ("raised", "SolutionError", f"returned {answer.what}")
