"""The coding eval of one session: answers of the baseline and of each config, graded once, compared pairwise."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

from pytest_ddtree.client.records import Record
from pytest_ddtree.coding import extract
from pytest_ddtree.coding.checking import grade
from pytest_ddtree.coding.expected import with_expected
from pytest_ddtree.coding.pairs import CodingSummary, Pair, Solved, summarise
from pytest_ddtree.coding.problems import Problem
from pytest_ddtree.coding.sandbox import Limits, Sandbox
from pytest_ddtree.coding.stats import Gate
from pytest_ddtree.errors import Infrastructure
from pytest_ddtree.exactness.baseline import record_baseline
from pytest_ddtree.exactness.levels import AnswerFailed, collect, first_divergence, teacher_force
from pytest_ddtree.exactness.prompts import BaselineAnswers, Prompt
from pytest_ddtree.exactness.rule import judge
from pytest_ddtree.exactness.verdict import Level, Verdict
from pytest_ddtree.grid import BASELINE, Config

if TYPE_CHECKING:
    from pytest_ddtree.run import Run


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


class CodingAnswers:
    """The session's side of the eval: prompts, answers, and the verdict on each answer."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._recorded: BaselineAnswers | None = None

    def chat_ids(self, question: str) -> tuple[int, ...]:
        """The token ids of a chat prompt with this question, thinking as the options say."""
        return self._run.maker("code").chat_ids(question)

    def opens_thinking(self, question: str) -> bool:
        """Whether the chat prompt of this question ends inside a thinking section."""
        return self._run.maker("code").opens_thinking(question)

    def answer(self, config: Config, prompts: Sequence[Prompt]) -> dict[str, Record]:
        """Greedy answers of a config; the baseline's are kept with their logprobs."""
        run = self._run
        client = run.async_client(run.get(config))
        output, concurrency = run.settings.coding_output, run.settings.coding_concurrency
        if config != BASELINE:
            try:
                return run.await_(collect(client, prompts, output=output, concurrency=concurrency))
            except AnswerFailed as error:
                raise run.fault(config, error.record) or error from None
        self._recorded = run.await_(record_baseline(client, prompts, output=output, concurrency=concurrency))
        return dict(self._recorded.records)

    def judge_answers(
        self, config: Config, prompts: Sequence[Prompt], records: dict[str, Record]
    ) -> dict[str, Verdict]:
        """The verdict on each answer, judged alone; false alarms are bounded over all of them together.

        Raises:
            NotSolved: the baseline was not asked for its own answers.
        """
        run = self._run
        if self._recorded is None:
            raise NotSolved(f"{config.id}: the baseline was not asked for its answers to the coding problems")
        floor, rule = run.verifier.floor_and_rule()
        level: Level = "first-divergence"
        if run.is_up(BASELINE):
            level = "full"
            scoring = teacher_force(
                run.async_client(run.get(BASELINE)),
                prompts,
                records,
                baseline=self._recorded,
                concurrency=run.settings.coding_concurrency,
            )
            judged = run.await_(scoring)
        else:
            judged = first_divergence(prompts, records, self._recorded)
        rule = replace(rule, alpha=rule.alpha / max(1, len(prompts)))
        return {one.tag: judge([one], floor, rule, config=config.id, level=level) for one in judged}
