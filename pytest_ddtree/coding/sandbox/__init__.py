"""Runs untrusted Python on Linux: seccomp, Landlock, resource limits, and no way back but plain values.

See docs/sandbox.md for the design and for what it withstands.
"""

from __future__ import annotations

from .capabilities import SandboxCapabilities
from .errors import SandboxBrokenError, SandboxError, SandboxOffWarning, SandboxUnavailableError
from .inner.codec import CodecError, decode
from .limits import Limits
from .results import Done, Ended, Examined, Missing, Odd, ProgramResult, Raised, Value
from .sandbox import Sandbox, probe

__all__ = [
    "CodecError",
    "Done",
    "Ended",
    "Examined",
    "Limits",
    "Missing",
    "Odd",
    "ProgramResult",
    "Raised",
    "Sandbox",
    "SandboxBrokenError",
    "SandboxCapabilities",
    "SandboxError",
    "SandboxOffWarning",
    "SandboxUnavailableError",
    "Value",
    "decode",
    "probe",
]
