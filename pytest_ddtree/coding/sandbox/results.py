"""What a run answered, before anybody judges it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Value:
    """A returned value of exact builtin types, still encoded."""

    encoded: bytes


@dataclass(frozen=True, slots=True)
class Odd:
    """A returned value that is not made of exact builtin types, or is too large; `what` says so."""

    what: str


@dataclass(frozen=True, slots=True)
class Raised:
    """An exception, or a source that does not compile; the traceback holds the solution's lines only."""

    type_name: str
    traceback: str


@dataclass(frozen=True, slots=True)
class Missing:
    """The solution does not define the entry point."""

    entry_point: str


@dataclass(frozen=True, slots=True)
class Ended:
    """The run is over without an answer."""

    how: Literal["timeout", "memory", "crash"]
    detail: str


@dataclass(frozen=True, slots=True)
class Done:
    """A step without a value went well: loading, building an object, asserts in the sandbox."""


@dataclass(frozen=True, slots=True)
class ProgramResult:
    """A program that came to its end by itself."""

    stdout: bytes
    stderr: str
    exit_status: int


CallResult = Value | Odd | Raised | Missing | Ended
StepResult = Done | Odd | Raised | Missing | Ended


@dataclass(frozen=True, slots=True)
class Examined:
    """Verdict of test code on a candidate, from the child that holds the test.

    verdict: "passed", "failed" (an assertion or another exception), "uncrossable" (the test passes values
    that cannot
        be sent), or how a child ended; `detail` says where. exception: type of what failed.
    calls: how often the candidate was called. arguments, keywords, answer: the last call, values encoded.
    """

    verdict: Literal["passed", "failed", "uncrossable", "timeout", "memory", "crash"]
    detail: str
    exception: str
    calls: int
    arguments: bytes
    keywords: bytes
    answer: CallResult | None
