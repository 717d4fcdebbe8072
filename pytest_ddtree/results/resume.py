"""Going on with an interrupted run: what is measured already, what comes next, and when that must not be done."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from pytest_ddtree.exactness.verdict import Verdict
from pytest_ddtree.grid import CellKey
from pytest_ddtree.results.fingerprint import Fingerprint
from pytest_ddtree.results.model import Round
from pytest_ddtree.results.runs import SESSION, StoredRun


class ResumeRefused(ValueError):
    """What was measured then and what would be measured now are not the same thing; the text names every difference."""


@dataclass(frozen=True, slots=True)
class Step:
    """One round of one cell of one config."""

    config: str
    key: CellKey
    number: int


def steps(cells: Iterable[tuple[str, CellKey]], rounds: int) -> Iterator[Step]:
    """Every round of a plan, in the order of its cells."""
    for config, key in cells:
        for number in range(rounds):
            yield Step(config, key, number)


def remaining(
    cells: Iterable[tuple[str, CellKey]], rounds: int, measured: Iterable[Round]
) -> tuple[Step, ...]:
    """The rounds of a plan that nobody measured yet, in order; the first is the one to go on with."""
    done = {(one.config, one.key, one.number) for one in measured if one.again == 0}
    return tuple(step for step in steps(cells, rounds) if (step.config, step.key, step.number) not in done)


class Resumed:
    """What an earlier, interrupted run already knows."""

    def __init__(self, stored: StoredRun) -> None:
        self.stored = stored
        self._rounds = {(one.config, one.key, one.number): one for one in stored.rounds if one.again == 0}

    def round(self, config: str, key: CellKey, number: int) -> Round | None:
        """A round that was measured, None if it was not."""
        return self._rounds.get((config, key, number))

    def complete(self, config: str, keys: Iterable[CellKey], rounds: int) -> bool:
        """Whether nothing of a config is left to do: it was read back, verified (if it speculates) and measured in every cell.

        Only then its verdict is taken over: rounds that are still to come run on a new process, which is verified again.
        """
        known = config in self.stored.mismatches
        judged = config == "baseline" or bool(self.stored.results.verdicts.get(config))
        return known and judged and not remaining([(config, key) for key in keys], rounds, self.stored.rounds)

    def verdicts(self, config: str) -> list[Verdict]:
        """The stored verdicts of a config, oldest first."""
        return list(self.stored.results.verdicts.get(config, []))

    def check(self, scope: str, now: Fingerprint) -> None:
        """Compare a fingerprint with the stored one of the same scope: `session` or a config id.

        Raises:
            ResumeRefused: they differ.
        """
        before = self.stored.fingerprints.get(scope)
        if before is None:
            if scope == SESSION:
                raise ResumeRefused(
                    f"{self.stored.path}: this run has no fingerprint, so nobody can tell whether the rest would be measured under the "
                    "same conditions. Start a new run."
                )
            return
        differences = before.differences(now)
        if differences:
            what = "the session" if scope == SESSION else f"the server of {scope}"
            listed = "\n".join(f"  {difference}" for difference in differences)
            raise ResumeRefused(
                f"{self.stored.id} cannot be resumed: {what} is not what it was when the run was interrupted:\n{listed}\n"
                "Bring back what it was, or start a new run; what was measured stays where it is."
            )

    def summary(self) -> str:
        """One line for the terminal."""
        torn = (
            f"; {self.stored.torn} bytes of an unfinished last record were cut off"
            if self.stored.torn
            else ""
        )
        return f"resuming {self.stored.id}: {len(self._rounds)} rounds are measured{torn}"
