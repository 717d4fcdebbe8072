"""Ways not to answer, counted pairwise: a fault of speculative decoding often shows as truncation or endless thinking first. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from pytest_ddtree.coding.pairs import Solved
from pytest_ddtree.coding.stats import Gate, mcnemar

COUNTED: Final[Mapping[str, Callable[[Solved], bool]]] = MappingProxyType(
    {
        "truncated": lambda solved: solved.cut,
        "no_code": lambda solved: solved.extraction.code is None,
        "timeout": lambda solved: solved.outcome.status == "timeout",
    }
)
"""What is counted: answers at the token limit, answers without code to run, code that ran out of time."""


@dataclass(frozen=True, slots=True)
class Counter:
    """How often one thing happened: on the baseline, here, here alone, there alone, among `n` problems."""

    name: str
    n: int
    baseline: int
    other: int
    here_alone: int
    there_alone: int
    gate: Gate

    @property
    def p(self) -> float:
        """p of the one-sided exact McNemar test that it happens more often here."""
        return mcnemar(self.here_alone, self.there_alone)

    @property
    def failed(self) -> bool:
        """Whether it grew beyond chance and margin; the level is shared by all counters."""
        shared = Gate(alpha=self.gate.alpha / len(COUNTED), margin=self.gate.margin)
        return shared.fails(self.n, self.here_alone, self.there_alone)

    def __str__(self) -> str:
        if not (self.here_alone or self.there_alone):
            return f"{self.name} {self.baseline} -> {self.other}"
        return (
            f"{self.name} {self.baseline} -> {self.other} (here alone {self.here_alone}, baseline alone {self.there_alone}, "
            f"p={self.p:.3g})"
        )


def count(pairs: Sequence[tuple[Solved, Solved]], gate: Gate) -> tuple[Counter, ...]:
    """The counters over (baseline, here) answers to the same problems."""
    found = []
    for name, happens in COUNTED.items():
        rows = [(happens(base), happens(other)) for base, other in pairs]
        found.append(
            Counter(
                name,
                len(rows),
                baseline=sum(base for base, _ in rows),
                other=sum(other for _, other in rows),
                here_alone=rows.count((False, True)),
                there_alone=rows.count((True, False)),
                gate=gate,
            )
        )
    return tuple(found)
