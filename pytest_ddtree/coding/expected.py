"""Expected values of problems that come with inputs only: what the reference solution returns."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from pytest_ddtree.coding.checking import ProblemFaultError
from pytest_ddtree.coding.checking.cases import unanswered
from pytest_ddtree.coding.problems import Case, Problem
from pytest_ddtree.coding.sandbox import Sandbox, Value
from pytest_ddtree.coding.sandbox.inner.codec import CodecError, decode

#: Inputs of one process of the sandbox: a slow one then costs few others.
_BATCH: Final = 100


def with_expected(problem: Problem, sandbox: Sandbox) -> Problem:
    """The problem with cases instead of `inputs`; a problem without inputs as it is.

    The reference solution runs in the sandbox like any answer. Raises ProblemFaultError where it fails on one
    of the inputs or returns what cannot be compared, SandboxError where the sandbox fails.
    """
    if not problem.inputs:
        return problem
    cases: list[Case] = []
    for start in range(0, len(problem.inputs), _BATCH):
        batch = problem.inputs[start : start + _BATCH]
        try:
            results = sandbox.run_function(
                problem.solution, problem.entry_point, [(args, {}) for args in batch]
            )
        except CodecError as error:
            raise ProblemFaultError(problem.task_id, f"an input holds {error}") from error
        # Where the solution does not load or ends, there are fewer results, and the last of them says so.
        for offset, (args, result) in enumerate(zip(batch, results, strict=False)):
            if not isinstance(result, Value):
                why = unanswered(result).describe()
                raise ProblemFaultError(
                    problem.task_id, f"its reference solution fails on input {start + offset + 1}: {why}"
                )
            try:
                expect = decode(result.encoded)
            except CodecError as error:
                raise ProblemFaultError(
                    problem.task_id, f"its reference solution returns no plain value: {error}"
                ) from error
            cases.append(Case(args=args, expect=expect, cmp=problem.cmp, atol=problem.atol))
    return replace(problem, cases=tuple(cases), inputs=())
