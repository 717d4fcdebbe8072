"""The coding eval: problems, the final answer of a response, the sandbox, checking, and statistics."""

from __future__ import annotations

from pytest_ddtree.coding.checking import Outcome, ProblemFaultError, check, grade
from pytest_ddtree.coding.extract import STATUS_TEXT, STATUSES, Block, Extraction, Status, extract
from pytest_ddtree.coding.sandbox import (
    Limits,
    Sandbox,
    SandboxCapabilities,
    SandboxError,
    SandboxOffWarning,
    SandboxUnavailableError,
    probe,
)

__all__ = [
    "STATUSES",
    "STATUS_TEXT",
    "Block",
    "Extraction",
    "Limits",
    "Outcome",
    "ProblemFaultError",
    "Sandbox",
    "SandboxCapabilities",
    "SandboxError",
    "SandboxOffWarning",
    "SandboxUnavailableError",
    "Status",
    "check",
    "extract",
    "grade",
    "probe",
]
