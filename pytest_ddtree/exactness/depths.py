"""How deep drafts are accepted, from proved verify steps, and what the server's own histogram says of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from pytest_ddtree.client.records import Record
from pytest_ddtree.exactness.steps import step_sizes


@dataclass(frozen=True, slots=True)
class DepthAcceptance:
    """How deep the drafts were accepted, by depth from 1."""

    shares: tuple[float, ...]
    """Share of all steps in which this depth was accepted; falls with depth by its nature."""
    rates: tuple[float, ...]
    """Share among the steps in which the depth before was accepted; may well rise, see `depth_acceptance`."""
    steps: int

    def summary(self) -> str:
        """One line for people."""
        shares = ", ".join(f"{share:.0%}" for share in self.shares)
        return f"depth 1 on was accepted in {shares or 'none'} of {self.steps} verify steps"


def depth_acceptance(records: Sequence[Record]) -> DepthAcceptance | None:
    """Acceptance by depth from proved verify steps; None where no record's steps are proved.

    A step of n tokens accepted depths 1 to n - 1. The last step of an answer is left out: the length limit or
    a stop may have cut it. For people, not for a gate: the rate among steps that got as far rises with depth
    on a healthy server (0.34, 0.52, 0.77, 0.95 on the embedded chain), because easy text comes in stretches.
    """
    sizes = [sizes[:-1] for record in records if (sizes := step_sizes(record)) is not None]
    flat = np.asarray([size for row in sizes for size in row], dtype=np.int64)
    if flat.size == 0:
        return None
    reached = [int(np.count_nonzero(flat >= depth)) for depth in range(1, int(flat.max()) + 1)]
    shares = tuple(count / flat.size for count in reached[1:])
    rates = tuple(after / before for before, after in pairwise(reached))
    return DepthAcceptance(shares, rates, int(flat.size))


HISTOGRAM = "spec_correct_drafts_histogram"


def histogram_problems(record: Record) -> list[str]:
    """What the server's histogram of accepted drafts per step says that its chunks do not bear out."""
    said = record.meta.get(HISTOGRAM)
    steps = record.verify_steps
    if not isinstance(said, list) or steps is None or not all(isinstance(count, int) for count in said):
        return []
    problems = []
    if sum(said) != steps:
        problems.append(f"{HISTOGRAM} holds {sum(said)} steps, spec_verify_ct says {steps}")
    sizes = step_sizes(record)
    accepted = sum(number * count for number, count in enumerate(said))
    # The length limit may cut the last step, so its accepted drafts are not all emitted.
    if sizes is not None and accepted < sum(sizes) - len(sizes):
        problems.append(
            f"{HISTOGRAM} holds {accepted} accepted drafts, but {sum(sizes) - len(sizes)} were emitted"
        )
    return problems
