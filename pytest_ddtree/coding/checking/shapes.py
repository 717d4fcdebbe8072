"""What checking needs to know of a problem, whoever loads it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol


class CaseLike(Protocol):
    """One hidden case.

    args, kwargs: of the function, or of the constructor in mode "class". calls: (method, positional
    arguments) pairs in mode "class". stdin: text for a program. expect: the value, the list of the calls'
    values, or the whole output. cmp: one of `compare.MODES`. atol: absolute tolerance of "approx" and "equal";
    None for the default.
    """

    @property
    def args(self) -> tuple[Any, ...]: ...
    @property
    def kwargs(self) -> Mapping[str, Any]: ...
    @property
    def calls(self) -> Sequence[tuple[str, tuple[Any, ...]]]: ...
    @property
    def stdin(self) -> str: ...
    @property
    def expect(self) -> Any: ...
    @property
    def cmp(self) -> str: ...
    @property
    def atol(self) -> float | None: ...


class ProblemLike(Protocol):
    """A problem.

    mode: "function", "class" and "stdin" have cases; "check" has test code that calls a candidate from
    outside the solution's process; "asserts" has test code that must run inside it. prompt: in mode "check",
    where it is Python, it defines names that the test borrows.
    """

    @property
    def task_id(self) -> str: ...
    @property
    def mode(self) -> str: ...
    @property
    def entry_point(self) -> str: ...
    @property
    def prompt(self) -> str: ...
    @property
    def cases(self) -> Sequence[CaseLike]: ...
    @property
    def test(self) -> str: ...


class ExtractionLike(Protocol):
    """What was made of a model's response; `code` is None when `status` is not "ok"."""

    @property
    def code(self) -> str | None: ...
    @property
    def status(self) -> str: ...
