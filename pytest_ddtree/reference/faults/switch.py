"""Hooks whose planted faults can be exchanged while the server runs, for the suite's own tests.

A start costs more than most tests that look for a fault; with this one server serves them all.
"""

from __future__ import annotations

from ..hooks import Hooks
from .registry import HOOKS

AT_START = ("numerics", "started")
"""What acts while a server starts, so that an exchange comes too late for it."""


class Switch(Hooks):
    """Hooks that do what the hooks in use do."""

    def __init__(self, first: Hooks) -> None:
        self.use(first)

    def use(self, hooks: Hooks) -> None:
        """From now on these act. Whoever calls sees to it that nothing runs and that nothing is cached."""
        for name in HOOKS:
            setattr(self, name, getattr(hooks, name))


def acts_at_start(hooks: Hooks) -> bool:
    """Whether these hooks do something that only a start can show."""
    return any(
        getattr(getattr(hooks, name), "__func__", None) is not getattr(Hooks, name) for name in AT_START
    )
