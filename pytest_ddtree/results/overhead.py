"""Where a session's time went, and how much of it was the harness itself: what is neither start, verification, warm-up, flush nor load."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Literal

Activity = Literal["probe", "start", "verify", "warm-up", "flush", "load", "coding"]
"""What a session does on purpose. `probe`: the build is asked what it can do, which imports the engine; `start`: a server is
brought up, and the one that has to go for it down; `load`: what was measured."""
SHOWN_S = 0.05
"""Less of an activity is 0.0 s, and not worth a word."""


@dataclass(frozen=True, slots=True)
class Account:
    """Seconds by activity out of a wall time."""

    wall: float
    parts: Mapping[str, float] = field(default_factory=dict)
    workers: int = 1
    """How many sessions were added up; each has its own wall time, though they ran at once."""
    sessions: int = 1
    """How many sessions of one run, each of which resumed the one before, were added up."""
    silent: int = 0
    """How many more there were that ended without an account: they were killed."""

    @property
    def harness(self) -> float:
        """Seconds that no activity explains."""
        return max(0.0, self.wall - sum(self.parts.values()))

    @property
    def share(self) -> float:
        """The harness's share of the wall time."""
        return self.harness / self.wall if self.wall else 0.0

    def __str__(self) -> str:
        parts = ", ".join(
            f"{name} {seconds:.1f} s" for name, seconds in self.parts.items() if seconds >= SHOWN_S
        )
        several = f" of {self.workers} workers together" if self.workers > 1 else ""
        whole = self.sessions + self.silent
        if whole > 1:
            several += (
                f" in {self.sessions} of {whole} sessions of this run"
                if self.silent
                else f" in {whole} sessions of this run"
            )
        return f"harness overhead {self.share:.1%} of {self.wall:.1f} s{several} ({parts or 'nothing else was done'})"

    def as_json(self) -> dict[str, Any]:
        """Plain values for the store."""
        return {
            "wall_s": self.wall,
            "parts_s": dict(self.parts),
            "harness_s": self.harness,
            "share": self.share,
        }


def added(accounts: Sequence[Mapping[str, Any]]) -> Account:
    """Accounts of several workers, as stored (`Account.as_json`), added up. Raises KeyError or TypeError for what is none."""
    parts: dict[str, float] = {}
    for one in accounts:
        for name, seconds in one["parts_s"].items():
            parts[name] = parts.get(name, 0.0) + float(seconds)
    return Account(sum(float(one["wall_s"]) for one in accounts), parts, len(accounts))


def over_sessions(accounts: Sequence[Mapping[str, Any]], sessions: int) -> Account:
    """The accounts of a run's sessions, of which all but the first resumed it, as stored, added up; one that was killed left none.

    Raises KeyError or TypeError for what is no account.
    """
    total = added(accounts)
    return replace(total, workers=1, sessions=len(accounts), silent=max(0, sessions - len(accounts)))


class Ledger:
    """Adds up activities as they happen; of nested ones the inner gets the time. Not thread-safe."""

    def __init__(self, clock: Callable[[], float] = time.monotonic, *, began: float | None = None) -> None:
        """`began`: when the session began on this clock, where that was before now."""
        self._clock = clock
        self._began = clock() if began is None else began
        self._parts: dict[str, float] = {}
        self._open: list[tuple[str, float]] = []

    @contextmanager
    def during(self, activity: Activity) -> Iterator[None]:
        """Time inside counts as this activity, however it ends."""
        self._settle()
        self._open.append((activity, self._clock()))
        try:
            yield
        finally:
            self._settle()
            self._open.pop()
            if self._open:
                outer, _ = self._open[-1]
                self._open[-1] = (outer, self._clock())

    def add(self, activity: Activity, seconds: float) -> None:
        """Time that somebody else measured, for instance the pool a start. Taken out of the activity around it."""
        self._parts[activity] = self._parts.get(activity, 0.0) + seconds
        if self._open:
            outer, since = self._open[-1]
            self._open[-1] = (outer, since + seconds)

    def account(self) -> Account:
        """What there is so far."""
        self._settle()
        return Account(self._clock() - self._began, dict(self._parts))

    def _settle(self) -> None:
        if self._open:
            activity, since = self._open[-1]
            now = self._clock()
            self._parts[activity] = self._parts.get(activity, 0.0) + now - since
            self._open[-1] = (activity, now)
