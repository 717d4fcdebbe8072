"""Judges solutions: the answers come out of the sandbox, the expected values never go in."""

from __future__ import annotations

from .compare import agree
from .faults import ProblemFaultError
from .judge import check, grade, no_answer
from .outcome import Outcome, Status
from .shapes import CaseLike, ExtractionLike, ProblemLike
from .show import printable

__all__ = [
    "CaseLike",
    "ExtractionLike",
    "Outcome",
    "ProblemFaultError",
    "ProblemLike",
    "Status",
    "agree",
    "check",
    "grade",
    "no_answer",
    "printable",
]
