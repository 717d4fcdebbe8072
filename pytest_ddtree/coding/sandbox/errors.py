"""Faults of the sandbox itself. None of them says anything about a solution."""

from __future__ import annotations

from pytest_ddtree.errors import Infrastructure


class SandboxError(Infrastructure):
    """The sandbox could not do its work; a test that sees this is an error, neither passed nor failed."""


class SandboxUnavailableError(SandboxError):
    """This system offers no way to run untrusted code; the message says what to do."""


class SandboxBrokenError(SandboxError):
    """The sandbox stopped working during a run (a process died that must not)."""


class SandboxOffWarning(UserWarning):
    """Solutions run with resource limits only."""
