"""What a resumed session takes over from the store, so that a config that is complete and unchanged costs neither start nor judging."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from pytest_ddtree.dialects.effective import Mismatch
from pytest_ddtree.exactness.contract.evidence import Evidence
from pytest_ddtree.exactness.verdict import Verdict
from pytest_ddtree.grid import CellKey, Config
from pytest_ddtree.options import settings_json
from pytest_ddtree.results.model import Results, Round, that_counts
from pytest_ddtree.results.resume import Resumed
from pytest_ddtree.results.runs import verdict_from_json
from pytest_ddtree.results.secrets import mask_values
from pytest_ddtree.servers.handle import Running, Server

if TYPE_CHECKING:
    from pytest_ddtree.options import Settings
    from pytest_ddtree.plan import Plan

JUDGED_BY = (
    "exactness_prompts",
    "exactness_output",
    "gap_factor",
    "gap_min",
    "share_factor",
    "share_margin",
    "alpha",
)
"""Options that a verdict depends on: judged with others, a config is judged again."""

REASON = "resume"
"""Why a server is started once more for a run that had started it before."""


class Recall:
    """What of an interrupted run needs no server any more. `enough` says whether a cell has its rounds."""

    def __init__(
        self, resumed: Resumed, plan: Plan, settings: Settings, enough: Callable[[Sequence[Round]], bool]
    ) -> None:
        stored = resumed.stored
        self._resumed = resumed
        self._plan = plan
        self._enough = enough
        now = mask_values(settings_json(settings))
        # Which session judged a config is not stored: all of them have to agree.
        self._judged_alike = all(
            then.get(name) == now.get(name) for then in stored.every_settings for name in JUDGED_BY
        )
        self._started = {start.config for start in stored.results.starts}
        self._dropped: set[str] = set()

    def complete(self, config: Config) -> bool:
        """Whether nothing of a config is left to do, so that its server is not needed."""
        if config.id in self._dropped or (config.speculative and not self._judged_alike):
            return False
        full = config in self._plan.full
        return self._resumed.complete(config.id, self._plan.cells, self._enough, full=full)

    def drop(self, config: Config) -> None:
        """Take nothing over any more: a new process runs."""
        self._dropped.add(config.id)

    def reason(self, config: Config) -> str | None:
        """Why the server of a config is started: once, where an earlier part of the run had it up already."""
        if config.id not in self._started:
            return None
        self._started.discard(config.id)
        return REASON

    def take(self, config: Config, results: Results) -> None:
        """Put what is known of a config into the results: what it ran and what the server warned of."""
        stored = self._resumed.stored.results
        results.effective.setdefault(config.id, stored.effective.get(config.id, {}))
        for text in stored.warnings:
            if text.startswith(f"{config.id}: ") and text not in results.warnings:
                results.warnings.append(text)

    def verdict(self, config: Config) -> tuple[Verdict, tuple[Verdict, ...]] | None:
        """The verdict on a config by itself, and all that were made, clauses of the contract included; None: it is judged again."""
        if not self.complete(config):
            return None
        every = self._resumed.verdicts(config.id)
        clauses = self._resumed.stored.judged_clauses
        own = that_counts([one for one in every if not any(one is judged for judged in clauses)])
        return None if own is None else (own, tuple(every))

    def clause(self, config: Config, name: str) -> tuple[Evidence, Verdict | None] | None:
        """What came out of a clause of the contract; None: it is carried out (again)."""
        record = self._resumed.stored.clauses.get((config.id, name))
        if record is None or not self.complete(config):
            return None
        verdict = record["verdict"]
        evidence = Evidence(
            problems=tuple(record["problems"]), skipped=record["skipped"], notes=tuple(record["notes"])
        )
        return evidence, None if verdict is None else verdict_from_json(verdict)

    def rounds(self, config: Config, key: CellKey) -> tuple[Round, ...]:
        """The rounds of a cell that were measured."""
        return self._resumed.rounds(config.id, key)

    def infeasible(self, config: Config, key: CellKey) -> str | None:
        """Why the server of a complete config cannot hold a cell; None where it can, or where nobody knows."""
        return self._resumed.stored.infeasible.get((config.id, key)) if self.complete(config) else None


def clause_fields(evidence: Evidence, verdict: Verdict | None) -> dict[str, Any]:
    """What the store keeps of a clause: all but the answers."""
    return {
        "problems": list(evidence.problems),
        "skipped": evidence.skipped,
        "notes": list(evidence.notes),
        "verdict": None if verdict is None else verdict.as_json(),
    }


class DormantServer(Server):
    """The handle of a config whose results were taken over: whoever asks for more than was stored starts its server."""

    def __init__(self, config: Config, model: str, wake: Callable[[], Server]) -> None:
        super().__init__(config, model)
        self._wake = wake
        self._awake: Server | None = None

    @property
    def running(self) -> bool:
        return self._awake is not None and self._awake.running

    @property
    def current(self) -> Running:
        return self._woken.current

    def mismatches(self, *, required: Iterable[str] = ()) -> list[Mismatch]:
        # Only a config that ran what was asked counts as complete.
        return (
            [] if self._awake is None and not tuple(required) else self._woken.mismatches(required=required)
        )

    def refresh_log(self) -> None:
        if self._awake is not None:
            self._awake.refresh_log()

    def log_tail(self, n: int = 20) -> str:
        return "" if self._awake is None else self._awake.log_tail(n)

    def check_alive(self) -> None:
        self._woken.check_alive()

    @property
    def _woken(self) -> Server:
        if self._awake is None:
            self._awake = self._wake()
        return self._awake
