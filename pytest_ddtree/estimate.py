"""What a selection of tests will cost: starts with their reasons, requests, and minutes from earlier timings. Pure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pytest_ddtree.budget import duration

KEPT = 5
"""Earlier timings of one test that count, the newest: older ones are another engine by now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """How long one test took in an earlier run, with everything that it was the first to need: a start, answers of the baseline."""

    test: str
    config: str
    """Id of the config, empty for tests without one."""
    what: str
    """The cell, clause or problem; empty where the test has none."""
    seconds: float
    amount: float
    """What the time is proportional to, in any unit that does not depend on the machine: tokens per stream for a cell, stays of
    all builds for a comparison of them."""

    @classmethod
    def of(cls, test: PlannedTest, seconds: float, amount: float) -> Timing:
        """So long a planned test took, for so much of it as was done."""
        return cls(test=test.test, config=test.config, what=test.what, seconds=seconds, amount=amount)

    def as_json(self) -> dict[str, Any]:
        """Plain values for the store."""
        return {name: getattr(self, name) for name in self.__dataclass_fields__}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Timing:
        """The inverse of `as_json`. Raises KeyError, TypeError or ValueError for no timing."""
        seconds, amount = float(value["seconds"]), float(value["amount"])
        if not (0 <= seconds < math.inf and 0 < amount < math.inf):
            raise ValueError(f"{seconds} s for {amount} is no timing")
        return cls(
            test=str(value["test"]),
            config=str(value["config"]),
            what=str(value["what"]),
            seconds=seconds,
            amount=amount,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedTest:
    """One selected test."""

    test: str
    config: str = ""
    what: str = ""
    amount: float = 1.0


@dataclass(frozen=True, slots=True)
class Estimate:
    """Seconds of the tests that could be estimated, how many these are, how many of them by another config, and the names of the rest."""

    seconds: float
    known: int
    by_another_config: int
    unknown: tuple[str, ...]


def estimate(tests: Iterable[PlannedTest], earlier: Sequence[Timing]) -> Estimate:
    """Each test by the median of its own earlier timings, else of those of the other speculative configs, scaled by the amounts.

    `earlier` are oldest first. A baseline stands for no speculative config and the other way round.
    """
    exact: dict[tuple[str, str, str], list[float]] = {}
    similar: dict[tuple[str, bool, str], list[float]] = {}
    for one in earlier:
        rate = one.seconds / one.amount
        exact.setdefault((one.test, one.config, one.what), []).append(rate)
        similar.setdefault((one.test, one.config == "baseline", one.what), []).append(rate)
    seconds, known, borrowed = 0.0, 0, 0
    unknown: list[str] = []
    for test in tests:
        rates = exact.get((test.test, test.config, test.what))
        if rates is None:
            rates = similar.get((test.test, test.config == "baseline", test.what))
            borrowed += rates is not None
        if rates is None:
            unknown.append(f"{test.test}[{'-'.join(part for part in (test.config, test.what) if part)}]")
            continue
        known += 1
        seconds += test.amount * statistics.median(rates[-KEPT:])
    return Estimate(seconds, known, borrowed, tuple(unknown))


@dataclass(frozen=True, slots=True)
class PlannedStart:
    """So many starts of a server that the selection needs, or may need (`certain` False)."""

    what: str
    reason: str
    certain: bool = True
    times: int = 1

    def __str__(self) -> str:
        often = f" x {self.times}" if self.times > 1 else ""
        return f"{self.what}{often}: {self.reason}{'' if self.certain else ' (only if needed)'}"


@dataclass(frozen=True, slots=True)
class Count:
    """Something that is done from `least` to `most` times."""

    what: str
    least: int
    most: int

    def __str__(self) -> str:
        amount = f"{self.least}" if self.least == self.most else f"{self.least} to {self.most}"
        return f"{amount} {self.what}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Everything that the plan prints."""

    starts: tuple[PlannedStart, ...]
    cells: int
    configs: int
    builds: int = 1
    """How many builds are compared on each config."""
    counts: tuple[Count, ...]
    estimate: Estimate | None
    """None where there is no earlier timing at all."""
    source: str
    """Where earlier timings were looked for."""
    bound_s: float
    """All requests and starts at their time-outs, one after the other per stream."""
    budget_s: float | None


def lines(cost: Cost) -> list[str]:
    """The plan as text."""
    certain = sum(start.times for start in cost.starts if start.certain)
    maybe = sum(start.times for start in cost.starts) - certain
    text = [f"server starts: {certain}" + (f", and up to {maybe} more" if maybe else "")]
    text.extend(f"  {start}" for start in cost.starts)
    if cost.cells:
        builds = f", on each of {cost.builds} builds" if cost.builds > 1 else ""
        text.append(f"cells: {cost.cells} on {cost.configs} config{'s' if cost.configs != 1 else ''}{builds}")
    text.extend(f"  {count}" for count in cost.counts)
    text.append(_time(cost))
    text.append(
        f"bound: {duration(cost.bound_s)} if every start and request took as long as its time-out allows"
        + (
            ""
            if cost.budget_s is None
            else f"; nothing new begins after --ddtree-time-budget, {duration(cost.budget_s)}"
        )
    )
    return text


def _time(cost: Cost) -> str:
    found = cost.estimate
    if found is None or not found.known:
        return f"time: no estimate: there are no timings of these tests on this server, GPU and model under {cost.source}"
    total = found.known + len(found.unknown)
    text = f"time: about {duration(found.seconds)} for {found.known} of {total} tests, by earlier runs under {cost.source}"
    if found.by_another_config:
        text += f" ({found.by_another_config} of them by another config's)"
    if cost.builds > 1:
        text += ", without further passes"
    if found.unknown:
        shown = ", ".join(found.unknown[:3]) + (", ..." if len(found.unknown) > 3 else "")
        text += f"; unknown and not in it: {shown}"
    return text
