"""Going on with an interrupted run: what is measured already, and when that must not be done."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from pytest_ddtree.exactness.verdict import Verdict
from pytest_ddtree.grid import CellKey
from pytest_ddtree.results.fingerprint import OF_WORKLOAD, Difference, Fingerprint
from pytest_ddtree.results.model import Round, is_baseline, that_counts
from pytest_ddtree.results.runs import SESSION, StoredRun


class ResumeRefused(ValueError):
    """What was measured then and what would be measured now are not the same thing; the text names every difference."""


class Resumed:
    """What an earlier, interrupted run already knows."""

    def __init__(self, stored: StoredRun) -> None:
        self.stored = stored
        self._rounds = {(one.config, one.key, one.number): one for one in stored.rounds if one.again == 0}

    def rounds(self, config: str, key: CellKey) -> tuple[Round, ...]:
        """The rounds of a cell that were measured, in their order."""
        found = [one for (of, at, _), one in self._rounds.items() if (of, at) == (config, key)]
        return tuple(sorted(found, key=lambda one: one.number))

    def complete(
        self,
        config: str,
        keys: Iterable[CellKey],
        enough: Callable[[Sequence[Round]], bool],
        *,
        full: bool = False,
    ) -> bool:
        """Whether nothing of a config is left to do: read back as asked, judged, and every cell has enough rounds or is infeasible.

        A corrupt config has nothing left to do either: its speed says nothing. An `unknown` one has. Only then its verdict is taken
        over: rounds that are still to come run on a new process, which is verified again. `full`: a verdict of that level is needed.
        """
        if self.stored.mismatches.get(config) != ():
            return False
        if config != "baseline":
            verdict = that_counts(self.verdicts(config))
            if verdict is not None and verdict.kind == "corrupt":
                return True
            if verdict is None or not verdict.passed or (full and verdict.level != "full"):
                return False
        return all(
            (config, key) in self.stored.infeasible or enough(self.rounds(config, key)) for key in keys
        )

    def verdicts(self, config: str) -> list[Verdict]:
        """The stored verdicts of a config, oldest first."""
        return list(self.stored.results.verdicts.get(config, []))

    def check(self, scope: str, now: Fingerprint, options: Mapping[str, Any] | None = None) -> None:
        """Compare a fingerprint with the stored one of the same scope: `session` or a config id.

        `options` are those of this session as plain values: those behind a digest are named where it differs.

        Raises:
            ResumeRefused: they differ, or the run is a comparison of builds.
        """
        self._refuse_builds()
        before = self.stored.fingerprints.get(scope)
        if before is None:
            if scope == SESSION and (self.stored.rounds or self.stored.results.verdicts):
                raise ResumeRefused(
                    f"{self.stored.path}: this run has no fingerprint, so nobody can tell whether the rest would be measured under the "
                    "same conditions. Start a new run."
                )
            return
        differences = before.differences(now)
        if differences:
            what = "the session" if scope == SESSION else f"the server of {scope}"
            listed = "\n".join(
                f"  {line}" for line in [*differences, *self._behind(differences, options or {})]
            )
            raise ResumeRefused(
                f"{self.stored.id} cannot be resumed: {what} is not what it was when the run was interrupted:\n{listed}\n"
                "Bring back what it was, or start a new run; what was measured stays where it is."
            )

    def _refuse_builds(self) -> None:
        """A comparison cannot be gone on with: rounds of one build and rounds of another on another day differ by the day too."""
        stored = self.stored
        if not (stored.ab or stored.builds or stored.settings.get("build")):
            return
        measured = [
            name
            for name, results in stored.builds.items()
            # The base's baseline is no side of a comparison.
            if any(not is_baseline(config) for config, _ in results.cells)
        ]
        where = shlex.quote(str(stored.path.parent))
        raise ResumeRefused(
            f"{stored.id} is a comparison of builds, which cannot be resumed: "
            "builds are comparable only where they took turns in one session. "
            + (
                f"`pytest-ddtree compare {where}` compares what was measured of {', '.join(measured)}; "
                "for a new comparison give --ddtree-build again and leave --ddtree-resume out."
                if len(measured) > 1
                else "No two builds of it were measured, so there is nothing to compare: "
                "give --ddtree-build again and leave --ddtree-resume out."
            )
        )

    def _behind(self, differences: Iterable[Difference], options: Mapping[str, Any]) -> list[str]:
        """The options whose change made the digest of the workload another one."""
        if not any(one.name == "workload.digest" for one in differences):
            return []
        stored = self.stored.settings
        return [
            f"--ddtree-{name}: was {stored[name]}, is {options[name]}"
            for name in OF_WORKLOAD
            if name in stored and name in options and stored[name] != options[name]
        ]

    def check_version(self, now: Fingerprint) -> None:
        """Compare the version that any server says with what the servers of the interrupted part said.

        An installed engine is known by nothing else, and configs that are complete are not started again.

        Raises:
            ResumeRefused: it is another one.
        """
        for scope, before in self.stored.fingerprints.items():
            was, is_now = before.get("version"), now.get("version")
            if scope != SESSION and was != is_now:
                raise ResumeRefused(
                    f"{self.stored.id} cannot be resumed: the engine is not what it was when the run was interrupted:\n"
                    f"  version: was {was} on {scope}, is {is_now}\n"
                    "Bring back what it was, or start a new run; what was measured stays where it is."
                )

    def summary(self) -> str:
        """One line for the terminal."""
        torn = (
            f"; the {self.stored.torn} bytes of an unfinished last record at its end count for nothing, and go with the next record"
            if self.stored.torn
            else ""
        )
        return f"resuming {self.stored.id}: {len(self._rounds)} rounds are measured{torn}"
