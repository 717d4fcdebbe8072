"""The verdict on one solution."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, Literal

from .show import printable

_MOST_CHARACTERS: Final = 8000

Status = Literal["pass", "wrong", "error", "timeout", "memory", "crash", "no_answer"]


@dataclass(frozen=True, slots=True)
class Outcome:
    """Verdict and evidence, all of it text that is safe to store.

    wrong: `case` with `given`, `expected` and `got`. error: `detail` is the traceback through the solution's
    own lines. timeout, memory, crash: `detail` says what was reached or what happened. no_answer: `detail` is
    the extraction's status. case: index of the deciding case, None when none decided. calls: calls or runs
    that were answered. retried: the verdict is that of a second run, alone, after a timeout. weak: the test
    ran in the solution's own process, where a solution could have forged the verdict.
    """

    status: Status
    detail: str = ""
    case: int | None = None
    given: str = ""
    expected: str = ""
    got: str = ""
    calls: int = 0
    retried: bool = False
    weak: bool = False

    def __post_init__(self) -> None:
        # Tracebacks and the names of types hold what the solution put into them.
        for name in ("detail", "given", "expected", "got"):
            object.__setattr__(self, name, printable(_bounded(getattr(self, name))))

    @property
    def passed(self) -> bool:
        return self.status == "pass"

    def describe(self) -> str:
        """Several lines for a failure report."""
        lines = [self.status + (f" in case {self.case}" if self.case is not None else "")]
        for label, text in (("input", self.given), ("expected", self.expected), ("got", self.got)):
            if text:
                lines.append(f"{label}: {text}")
        if self.detail:
            lines.append(self.detail)
        if self.retried:
            lines.append("(run a second time, alone, after a timeout)")
        return "\n".join(lines)

    def after_timeout(self) -> Outcome:
        """The same verdict, marked as that of a second run."""
        return replace(self, retried=True)


def _bounded(text: str) -> str:
    half = _MOST_CHARACTERS // 2
    return text if len(text) <= _MOST_CHARACTERS else f"{text[:half]}\n[...]\n{text[-half:]}"
