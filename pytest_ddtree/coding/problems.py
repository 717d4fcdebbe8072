"""A coding problem and its hidden cases, whatever file they came from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias, get_args

from pytest_ddtree.coding.checking.show import printable
from pytest_ddtree.errors import Infrastructure

Mode: TypeAlias = Literal["function", "class", "stdin", "check", "asserts"]
Comparison: TypeAlias = Literal["exact", "equal", "approx", "set", "lines"]

MODES: Final[tuple[Mode, ...]] = get_args(Mode)
COMPARISONS: Final[tuple[Comparison, ...]] = get_args(Comparison)


@dataclass(frozen=True, slots=True)
class Case:
    """One hidden case. Values are of builtin types.

    `args` and `kwargs` go to the function, or to the constructor in mode "class", where `calls` are (method,
    positional arguments) pairs. `stdin` is the input of a program. `expect` is the value, the list of the
    calls' values, or the whole output. `atol` is the absolute tolerance of "approx" and "equal", None for
    its default.
    """

    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    calls: tuple[tuple[str, tuple[Any, ...]], ...] = ()
    stdin: str = ""
    expect: Any = None
    cmp: Comparison = "exact"
    atol: float | None = None


@dataclass(frozen=True, slots=True)
class Problem:
    """A task for a model and how its answer is judged.

    Modes "function", "class" and "stdin" have `cases`; "check" has a `test` that defines ``check(candidate)``;
    "asserts" has a `test` that must run beside the solution, which is weaker. `inputs` are arguments whose
    expected values are still to be had from `solution` (see `pytest_ddtree.coding.expected`).

    `prompt` is what the set says; `question` is the user message for a chat model, which also says that one
    Python block is wanted. `solution` and `stub` are a right
    and a wrong answer, "" if the set has none. `given` is code that the question presupposes: an answer may use
    what it imports and defines without repeating it. `shape` names the format, `origin` is "file:line". `extra`
    keeps the fields that have no place here.
    """

    task_id: str
    mode: Mode
    entry_point: str
    prompt: str
    question: str
    cases: tuple[Case, ...] = ()
    test: str = ""
    inputs: tuple[tuple[Any, ...], ...] = ()
    solution: str = ""
    stub: str = ""
    title: str = ""
    category: str = ""
    thinking: str = ""
    answer: str = ""
    given: str = ""
    cmp: Comparison = "exact"
    atol: float | None = None
    shape: str = ""
    origin: str = ""
    extra: Mapping[str, Any] = field(default_factory=dict)

    @property
    def stdin(self) -> bool:
        """Whether the answer is a program that reads standard input."""
        return self.mode == "stdin"


@dataclass(frozen=True, slots=True)
class Flaw:
    """Something wrong with a problem file. `line` counts from 1; None where the file as a whole is meant."""

    path: Path
    line: int | None
    message: str

    def __str__(self) -> str:
        place = f"{self.path}:{self.line}" if self.line else f"{self.path}"
        # Names and values of a file that somebody else wrote.
        return printable(f"{place}: {self.message}")


class ProblemFilesError(Infrastructure):
    """Problem files that cannot be used. Lists everything that was found wrong, not only the first thing."""

    def __init__(self, flaws: Sequence[Flaw]) -> None:
        self.flaws = tuple(flaws)
        count = "one problem" if len(flaws) == 1 else f"{len(flaws)} problems"
        super().__init__("\n".join([f"the problem files have {count}:", *(f"  {flaw}" for flaw in flaws)]))
