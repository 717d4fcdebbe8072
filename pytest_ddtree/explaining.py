"""The report of a corruption, with what was tried to see it again and the commands that do."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pytest_ddtree.client.records import Record
from pytest_ddtree.errors import Infrastructure, not_kept
from pytest_ddtree.exactness.judged import WorstToken
from pytest_ddtree.exactness.levels import Prompt
from pytest_ddtree.exactness.prompts import emitted_ids
from pytest_ddtree.exactness.report import Reproduction, corruption_report
from pytest_ddtree.exactness.reproduce import gap_above, reproduce, same_token
from pytest_ddtree.exactness.trace import Step, Trace, step_of
from pytest_ddtree.exactness.verdict import Verdict
from pytest_ddtree.grid import Config

if TYPE_CHECKING:
    from pytest_ddtree.client.client import AsyncClient
    from pytest_ddtree.run import Run

Answers = Sequence[tuple[tuple[Prompt, ...], dict[str, Record]]]
"""Groups of answers that were asked for together: their prompts, and tag -> record."""

TRIES = 2
"""Verdicts of one config whose corruption is looked for again; further ones of the same config are likely the same fault."""


@dataclass(frozen=True, slots=True)
class _Shown:
    """A worst token with the answer that it belongs to, and the group of that answer."""

    worst: WorstToken
    prompt: Prompt
    record: Record
    beside: tuple[tuple[Prompt, ...], dict[str, Record]]


class Explainer:
    """Explains verdicts that did not pass; remembers how often it asked a server again."""

    def __init__(self, run: Run, answers: Callable[[Config], Answers]) -> None:
        self._run = run
        self._answers = answers
        self._tried: dict[Config, int] = {}
        self._saved: dict[Config, int] = {}

    def explain(self, config: Config, verdict: Verdict) -> str:
        """The worst tokens in their text, with the judge's candidates; for the very worst how to see it again.

        Asks the server of the config up to 16 times while it is still up, to find out whether the corruption repeats alone and with
        how little; never raises for that.
        """
        shown = [found for worst in verdict.worst if (found := self._find(config, worst)) is not None]
        prompts = {one.worst.tag: one.prompt for one in shown}
        records = {one.worst.tag: one.record for one in shown}
        tried: dict[str, Reproduction] = {}
        if shown and verdict.kind == "corrupt":
            first = shown[0]
            prompts[first.worst.tag], tried[first.worst.tag] = self._again(config, verdict, first)
        decode = self._run.maker("code").decode
        return corruption_report(verdict, prompts, records, decode=decode, reproductions=tried)

    def _find(self, config: Config, worst: WorstToken) -> _Shown | None:
        """The answer that holds a worst token: tags repeat over clauses, so the token itself must be there."""
        for asked, records in self._answers(config):
            record = records.get(worst.tag)
            emitted = () if record is None else emitted_ids(record)
            at = worst.position
            if record is not None and at < len(emitted) and emitted[at] == worst.score.token_id:
                prompt = next(prompt for prompt in asked if prompt.tag == worst.tag)
                return _Shown(worst, prompt, record, (asked, records))
        return None

    def _again(self, config: Config, verdict: Verdict, shown: _Shown) -> tuple[Prompt, Reproduction]:
        """The shortened prompt, and what is known of repeating it. The trace is saved in any case."""
        prompt, found, why_not = shown.prompt, Reproduction(), None
        if not self._run.is_up(config):
            why_not = "its server is not up any more"
        elif self._tried.get(config, 0) >= TRIES:
            why_not = f"it was tried for {TRIES} other failures of {config.id} already"
        else:
            self._tried[config] = self._tried.get(config, 0) + 1
            try:
                prompt, found = self._run.await_(self._reproduce(config, verdict, shown))
            except Infrastructure as error:
                why_not = str(error).splitlines()[0]
        trace = self._trace(shown, prompt, found)
        self._saved[config] = self._saved.get(config, 0) + 1
        path = self._run.run_dir / "corrupt" / f"{config.id}-{self._saved[config]}.json"
        try:
            trace.save(path, config=config.id, why="; ".join(verdict.reasons), position=shown.worst.position)
        except OSError as error:
            # The verdict is what counts, and it says already what is wrong.
            self._run.file.lose(not_kept(path, error))
        return prompt, replace(
            found,
            not_tried=why_not,
            base_url=self._run.get(config).url if self._run.is_up(config) else None,
            pytest_command=self._run.rerun.command(config, path),
        )

    def _reproduce(
        self, config: Config, verdict: Verdict, shown: _Shown
    ) -> Awaitable[tuple[Prompt, Reproduction]]:
        run, worst = self._run, shown.worst
        scorer: AsyncClient | None = run.verifier.scorer()
        corrupt = (
            gap_above(scorer, min(verdict.gap_limit, worst.score.gap * 0.5))
            if scorer is not None
            else same_token(shown.prompt, worst.position, worst.score.token_id)
        )
        client = run.async_client(run.get(config))
        return reproduce(
            client,
            shown.prompt,
            shown.record.request.sampling,
            worst.position,
            corrupt,
            shorten=scorer is not None,
        )

    def _trace(self, shown: _Shown, prompt: Prompt, found: Reproduction) -> Trace:
        """The one request where that is enough, else all that ran beside it."""
        if found.alone:
            step = step_of(0, shown.record.request, prompt.ids)
            return Trace((replace(step, output=found.output or step.output),))
        asked, records = shown.beside
        steps: list[Step] = [
            step_of(number, records[one.tag].request, one.ids)
            for number, one in enumerate(asked)
            if one.tag in records
        ]
        return Trace(tuple(steps))
