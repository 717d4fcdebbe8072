"""The coding eval of one session: answers of the baseline and of each config, graded once, compared pairwise."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from pytest_ddtree.client.records import Record
from pytest_ddtree.coding import extract
from pytest_ddtree.coding.checking import grade
from pytest_ddtree.coding.expected import with_expected
from pytest_ddtree.coding.pairs import CodingSummary, Pair, Solved, summarise
from pytest_ddtree.coding.problems import Problem
from pytest_ddtree.coding.sandbox import Limits, Sandbox
from pytest_ddtree.coding.stats import Gate
from pytest_ddtree.errors import Infrastructure
from pytest_ddtree.exactness.prompts import Prompt
from pytest_ddtree.exactness.verdict import Verdict
from pytest_ddtree.grid import BASELINE, Config


class Answers(Protocol):
    """What the eval needs of a session."""

    def chat_ids(self, question: str) -> tuple[int, ...]:
        """The token ids of a chat prompt, thinking as configured."""
        ...

    def opens_thinking(self, question: str) -> bool:
        """Whether that prompt ends inside a thinking section."""
        ...

    def answer(self, config: Config, prompts: Sequence[Prompt]) -> dict[str, Record]:
        """Greedy answers of a config: tag -> record."""
        ...

    def judge_answers(
        self, config: Config, prompts: Sequence[Prompt], records: dict[str, Record]
    ) -> dict[str, Verdict]:
        """The verdict on each answer: tag -> verdict."""
        ...


class NotSolved(Infrastructure):
    """A problem has no usable pair of answers; the text says why."""


class Solver:
    """Answers and grades problems; each config is asked once for all problems of the selection."""

    def __init__(
        self,
        session: Answers,
        *,
        sandbox: str,
        gate: Gate,
        progress: Callable[[str], None],
        on_summary: Callable[[CodingSummary], None] = lambda summary: None,
    ) -> None:
        self._session = session
        self._mode = sandbox
        self._gate = gate
        self._progress = progress
        self._on_summary = on_summary
        self._sandbox: Sandbox | None = None
        self._prompts: dict[str, Prompt] = {}
        self._solved: dict[Config, dict[str, Solved]] = {}
        self._pairs: dict[Config, dict[str, Pair] | Infrastructure] = {}

    def solve(self, config: Config, problems: Sequence[Problem]) -> dict[str, Solved]:
        """The graded answers of a config to all of these problems, made once.

        Raises:
            Infrastructure: no answer, or no sandbox to run one in.
        """
        known = self._solved.setdefault(config, {})
        missing = [problem for problem in problems if problem.task_id not in known]
        if missing:
            box = self._open()
            prompts = [self._prompt(problem) for problem in missing]
            self._progress(f"{config.id}: {len(missing)} coding problems")
            records = self._session.answer(config, prompts)
            for problem in missing:
                known[problem.task_id] = solved(
                    with_expected(problem, box),
                    records[problem.task_id],
                    box,
                    thinking_open=self._session.opens_thinking(problem.question),
                )
        return known

    def pairs(self, config: Config, problems: Sequence[Problem]) -> dict[str, Pair]:
        """Each problem's pair of answers, made once for the whole selection. Raises Infrastructure."""
        known = self._pairs.get(config)
        if known is None:
            try:
                known = self._make_pairs(config, problems)
            except Infrastructure as error:
                known = error
            self._pairs[config] = known
        if isinstance(known, Infrastructure):
            raise known
        return known

    def summary(self, config: Config, problems: Sequence[Problem]) -> CodingSummary:
        """The counts over the selection. Raises Infrastructure."""
        return summarise(config.id, list(self.pairs(config, problems).values()), self._gate)

    def close(self) -> None:
        """End the sandbox."""
        if self._sandbox is not None:
            self._sandbox.close()
            self._sandbox = None

    def _make_pairs(self, config: Config, problems: Sequence[Problem]) -> dict[str, Pair]:
        base = self.solve(BASELINE, problems)
        other = self.solve(config, problems)
        prompts = [self._prompt(problem) for problem in problems]
        records = {problem.task_id: other[problem.task_id].record for problem in problems}
        verdicts = self._session.judge_answers(config, prompts, records)
        pairs = {
            problem.task_id: Pair(
                baseline=base[problem.task_id],
                other=other[problem.task_id],
                verdict=verdicts[problem.task_id],
            )
            for problem in problems
        }
        summary = summarise(config.id, list(pairs.values()), self._gate)
        self._progress(
            f"{config.id}: {summary.passed} of {summary.problems} solved, baseline {summary.baseline_passed}"
        )
        self._on_summary(summary)
        return pairs

    def _prompt(self, problem: Problem) -> Prompt:
        if problem.task_id not in self._prompts:
            self._prompts[problem.task_id] = Prompt(problem.task_id, self._session.chat_ids(problem.question))
        return self._prompts[problem.task_id]

    def _open(self) -> Sandbox:
        if self._sandbox is None:
            box = Sandbox(Limits(), mode="off" if self._mode == "off" else "strict", workers=2)
            box.open()
            self._progress(f"sandbox: {box.capabilities.describe()}")
            self._sandbox = box
        return self._sandbox


def solved(problem: Problem, record: Record, sandbox: Sandbox, *, thinking_open: bool = False) -> Solved:
    """Take the final answer out of a response and run it; `thinking_open`: the prompt itself opened the thinking."""
    reason = record.finish_reason or {}
    extraction = extract(
        record.text,
        entry_point=problem.entry_point or None,
        stdin=problem.stdin,
        finish_reason=str(reason.get("type")) if reason.get("type") else None,
        reasoning=record.reasoning,
        thinking_open=thinking_open,
    )
    outcome = grade(problem, extraction, sandbox)
    return Solved(problem=problem.task_id, record=record, extraction=extraction, outcome=outcome)
