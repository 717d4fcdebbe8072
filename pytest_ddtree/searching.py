"""Search for schedules that break a config (`--ddtree-fuzz`), and saved schedules once more (`--ddtree-trace`)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from pytest_ddtree.errors import Infrastructure
from pytest_ddtree.exactness.search import AGAIN, Failure, confirm, trace_fails
from pytest_ddtree.exactness.trace import Trace
from pytest_ddtree.grid import Config
from pytest_ddtree.liveness import check_serving

if TYPE_CHECKING:
    from pytest_ddtree.run import Run

PROMPTS = 8
"""Schedules use the shortest prompts: races are about turns, not about length."""
OUTPUT = 48
DEADLINE_S = 120.0


class Searcher:
    """Runs schedules on a config and says which fail."""

    def __init__(self, run: Run) -> None:
        self._run = run

    def search(self, config: Config) -> str | None:
        """Up to `--ddtree-fuzz` schedules; the report of the first that fails, run ten times more and minimised if it repeats.

        Raises:
            Infrastructure: the server died or hangs; the text names the saved schedule under which it did.
        """
        from pytest_ddtree.exactness.fuzz import fuzz

        run, settings = self._run, self._run.settings
        floor, rule = run.verifier.floor_and_rule()
        run.get(config)
        prompts = sorted(run.verifier.prompts(), key=lambda prompt: len(prompt.ids))[:PROMPTS]
        folder = run.run_dir / "traces"
        broken: list[Infrastructure] = []
        count = 0

        async def fails(trace: Trace) -> str | None:
            client = run.async_client(run.get(config))
            scorer = run.verifier.scorer()
            return await trace_fails(client, trace, floor, rule, baseline=scorer, deadline_s=DEADLINE_S)

        def first(trace: Trace) -> str | None:
            nonlocal count
            count += 1
            try:
                why = run.await_(fails(trace))
                if why is not None:
                    check_serving(run, config)
            except Infrastructure as error:
                # Kept for after the search: Hypothesis would run the schedule again on a server that is gone.
                broken.append(self._cause(config, error))
                return str(error).splitlines()[0]
            return why

        run.progress(f"{config.id}: search over {settings.fuzz} schedules of up to {PROMPTS} requests")
        found = fuzz(
            first,
            prompts,
            examples=settings.fuzz,
            database=settings.results / "hypothesis" / config.id,
            output=min(OUTPUT, settings.exactness_output),
        )
        if found is None:
            run.progress(f"{config.id}: none of {count} schedules failed")
            return None
        trace, why = found
        folder, name = run.run_dir / "traces", f"{config.id}-{count}"
        try:
            if broken:
                trace.save(folder / f"{name}.json", config=config.id, why=why)
                raise broken[0]
            run.progress(f"{config.id}: schedule {count} fails, {AGAIN} more runs of it: {why}")
            failure = run.await_(confirm(trace, why, fails, folder=folder, name=name))
        except Infrastructure as error:
            saved = self._command(config, folder / f"{name}.json")
            raise Infrastructure(
                f"{error}\nIt happened under a schedule that is saved; again: {saved}"
            ) from None
        run.store(
            "schedule", config=config.id, why=why, again=failure.again, runs=AGAIN, path=str(failure.path)
        )
        return self._report(config, failure)

    def replay(self, config: Config, path: Path) -> str | None:
        """Run a saved schedule once; why it fails, in words, or None.

        Raises:
            Infrastructure: the server died or hangs.
        """
        run = self._run
        floor, rule = run.verifier.floor_and_rule()
        client = run.async_client(run.get(config))
        running = trace_fails(
            client,
            Trace.load(path),
            floor,
            rule,
            baseline=run.verifier.scorer(),
            deadline_s=DEADLINE_S,
        )
        why = run.await_(running)
        if why is not None:
            check_serving(run, config)
        return None if why is None else f"{config.id}: {path}: {why}"

    def _cause(self, config: Config, error: Infrastructure) -> Infrastructure:
        """A dead or hung server explains more than the broken connection that it left."""
        try:
            check_serving(self._run, config)
        except Infrastructure as cause:
            return cause
        return error

    def _report(self, config: Config, failure: Failure) -> str:
        lines = [f"{config.id}: a schedule fails: {failure.summary()}"]
        if failure.path is not None:
            lines.append(f"again: {self._command(config, failure.path)}")
        return "\n".join(lines)

    def _command(self, config: Config, path: Path) -> str:
        return self._run.rerun.command(config, path)
