"""The coding eval's side of the servers: prompts, answers by ids or by chat, and the verdict on each answer."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from pytest_ddtree.client.records import Record, Request, Sampling
from pytest_ddtree.coding.endings import ending_fault
from pytest_ddtree.coding.pairs import contradiction
from pytest_ddtree.coding.problems import Problem
from pytest_ddtree.coding_requests import ABSENT, CodingRequests
from pytest_ddtree.errors import Infrastructure, NotKept
from pytest_ddtree.exactness.baseline import record_baseline
from pytest_ddtree.exactness.judged import JudgedAnswer
from pytest_ddtree.exactness.levels import AnswerFailed, first_divergence, teacher_force
from pytest_ddtree.exactness.parallel import each
from pytest_ddtree.exactness.prompts import BaselineAnswers, Prompt, emitted_ids
from pytest_ddtree.exactness.rule import judge
from pytest_ddtree.exactness.verdict import Level, Verdict
from pytest_ddtree.grid import BASELINE, Config
from pytest_ddtree.liveness import fault
from pytest_ddtree.model_files import has_chat_template
from pytest_ddtree.results.answers import Answer, AnswerBook

if TYPE_CHECKING:
    from pytest_ddtree.run import Run

_SEED_STEP = 1_000_003
LIMITS = tuple(range(9, 25))
"""Tokens. Consecutive, so that most accepted runs meet some limit in their middle."""


def _seed(first: int, number: int, task_id: str) -> int:
    """The seed of a problem's `number`-th sample: the same on every server, whatever else is asked of it."""
    return first + number * _SEED_STEP + zlib.crc32(task_id.encode()) % _SEED_STEP


class NotSolved(Infrastructure):
    """A problem has no usable pair of answers; the text says why."""


class CodingAnswers:
    """Asks the servers of a session and judges what they say. Every answer has the tag of its problem."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self.asks = CodingRequests(run)
        self._recorded: BaselineAnswers | None = None
        self._judged: dict[Config, tuple[Level, list[JudgedAnswer]]] = {}
        self._asked: dict[Config, dict[str, Record]] = {}
        self._opened: AnswerBook | None = None

    def opens_thinking(self, problem: Problem) -> bool:
        """Whether the chat prompt of this problem ends inside a thinking section."""
        if self.asks.by_text and self._run.facts.target is None:
            return False
        return self._run.maker("code").opens_thinking(problem.question)

    def can_ask(self, config: Config) -> bool:
        """Whether the server of a config runs now."""
        return self._run.is_up(config)

    def first(self, config: Config, problems: Sequence[Problem]) -> dict[str, Record]:
        """Greedy answers of a config: task id -> record. The baseline's are kept with their logprobs."""
        if config != BASELINE or self.asks.by_text:
            return self.again(config, problems, 0)
        run, settings = self._run, self._run.settings
        asked = {problem.task_id: self.asks.request(problem, settings.seed) for problem in problems}
        kept = self._kept(config, asked, 0)
        found = {tag: (answer.record, answer.scores) for tag, answer in kept.items()}
        missing = [problem for problem in problems if problem.task_id not in kept]
        if missing:
            recording = record_baseline(
                run.async_client(run.get(config)),
                self.asks.prompts_of(missing),
                output=settings.coding_output,
                concurrency=settings.coding_concurrency,
                on_answer=lambda record, scores: self._keep(config, 0, Answer(record, scores)),
            )
            fresh = run.await_(recording, "coding")
            found |= {tag: (record, fresh.scores[tag]) for tag, record in fresh.records.items()}
        before = self._recorded or BaselineAnswers({}, {})
        self._recorded = BaselineAnswers(
            {**before.records, **{tag: record for tag, (record, _) in found.items()}},
            {**before.scores, **{tag: scores for tag, (_, scores) in found.items()}},
        )
        return {problem.task_id: found[problem.task_id][0] for problem in problems}

    def again(self, config: Config, problems: Sequence[Problem], number: int) -> dict[str, Record]:
        """One more answer of a config to each problem; with a temperature, `number` chooses the seed."""
        run, settings = self._run, self._run.settings
        asked = {
            problem.task_id: self.asks.request(problem, _seed(settings.seed, number, problem.task_id))
            for problem in problems
        }
        found = {tag: answer.record for tag, answer in self._kept(config, asked, number).items()}
        missing = [request for tag, request in asked.items() if tag not in found]
        if not missing:
            return found
        server = run.get(config)
        client = self.asks.client(server)

        async def ask(request: Request) -> Record:
            record = await client.generate(request)
            # What a speculative server counts wrongly is a finding about it; of the baseline it leaves nothing to compare with.
            if not record.ok and not (config.speculative and contradiction(record)):
                raise AnswerFailed(record, "an answer to a coding problem")
            self._keep(config, number, Answer(record))
            return record

        try:
            fresh = run.await_(each(ask, missing, settings.coding_concurrency), "coding")
        except AnswerFailed as error:
            raise fault(run, config, error.record) or error from None
        found |= {request.tag: record for request, record in zip(missing, fresh, strict=True)}
        return {problem.task_id: found[problem.task_id] for problem in problems}

    def close(self) -> None:
        """Close the file of answers. May be called twice."""
        if self._opened is not None:
            self._opened.close()

    @property
    def _book(self) -> AnswerBook:
        if self._opened is None:
            self._opened = AnswerBook(self._run.run_dir, secrets=self._run.secrets)
            if self._opened.torn:
                self._run.warn(
                    f"an unfinished last answer ({self._opened.torn} bytes) was cut off; it is asked again"
                )
        return self._opened

    def _keep(self, config: Config, number: int, answer: Answer) -> None:
        try:
            self._book.keep(config.id, number, answer)
        except NotKept as error:
            self._run.file.lose(error)
            self._run.file.check()

    def _kept(self, config: Config, asked: Mapping[str, Request], number: int) -> dict[str, Answer]:
        """What an interrupted part of this run was answered to these requests already."""
        found = {tag: self._book.get(config.id, request, number) for tag, request in asked.items()}
        kept = {tag: answer for tag, answer in found.items() if answer is not None}
        if kept:
            self._run.progress(
                f"{config.id}: {len(kept)} of {len(asked)} answers to coding problems are taken over from {self._run.run_dir.name}"
            )
        return kept

    def too_long(self, config: Config, problems: Sequence[Problem]) -> tuple[str, ...]:
        """Which of some answers that are cut after a few tokens do not keep to their limit, in words.

        An accepted run that is not cut at the limit goes unnoticed while every answer ends before it. Raises Infrastructure.
        """
        run, seed = self._run, self._run.settings.seed
        server = run.get(config)
        client = self.asks.client(server)

        async def ask(limit: int) -> Record:
            asked = self.asks.request(problems[limit % len(problems)], seed + limit)
            return await client.generate(
                replace(asked, sampling=replace(asked.sampling, max_new_tokens=limit))
            )

        wrong = []
        for record in run.await_(each(ask, LIMITS, run.settings.coding_concurrency), "coding"):
            why = contradiction(record)
            if why is not None:
                wrong.append(
                    f"{record.request.tag}, asked for {record.request.sampling.max_new_tokens} tokens: {why}"
                )
            elif not record.ok:
                raise fault(run, config, record) or AnswerFailed(record, "an answer of a few tokens")
        return tuple(wrong)

    def judge(
        self, config: Config, problems: Sequence[Problem], records: dict[str, Record], *, first: bool
    ) -> dict[str, Verdict] | None:
        """The verdict on each answer, judged alone: task id -> verdict; None where only texts can be compared.

        False alarms are bounded over all answers together: half of the session's rate for single answers, half for all of them as
        one. `first` answers are kept for `overall`. An answer too short to be judged by shares is judged by its gaps.

        Raises:
            NotSolved: the baseline was not asked for its own answers.
        """
        if self.asks.by_text:
            return None
        run = self._run
        if self._recorded is None:
            raise NotSolved(f"{config.id}: the baseline was not asked for its answers to the coding problems")
        prompts = self.asks.prompts_of(problems)
        level: Level = "first-divergence"
        # An answer that contradicts itself has no tokens that could be trusted to be the ones it was made of.
        sound = {tag: record for tag, record in records.items() if contradiction(record) is None}
        if run.is_up(BASELINE):
            level = "full"
            judged = self._by_baseline(prompts, sound)
        else:
            judged = first_divergence(prompts, sound, self._recorded)
        judged += [
            JudgedAnswer(tag=prompt.tag, prompt_tokens=len(prompt.ids), scores=(), identical=False)
            for prompt in prompts
            if prompt.tag in records and prompt.tag not in sound
        ]
        if first:
            self._judged[config] = level, judged
            self._asked[config] = records
        return self._verdicts(config, judged, records, level)

    def overall(self, config: Config) -> Verdict:
        """The verdict on all first answers of a config as one, at the level at which they were judged. Raises NotSolved."""
        if config not in self._judged:
            raise NotSolved(
                f"{config.id}: none of its answers to coding problems was judged in this session; select them too"
            )
        level, judged = self._judged[config]
        floor, rule = self._run.verifier.floor_and_rule()
        verdict = judge(judged, floor, replace(rule, alpha=rule.alpha / 2), config=config.id, level=level)
        singles = self._verdicts(config, judged, self._asked[config], level)
        wrong = {name: one for name, one in singles.items() if one.kind == "corrupt"}
        if not wrong:
            return verdict
        named = [f"{name}: {'; '.join(one.reasons)}" for name, one in wrong.items()]
        before = () if verdict.kind == "unknown" else verdict.reasons
        return replace(verdict, kind="corrupt", reasons=(*before, *named))

    def at_level_full(self, config: Config) -> Verdict:
        """`overall` by a live baseline, which is started once more where it had to go. Raises Infrastructure."""
        known = self.overall(config)
        # The baseline's own tokens throughout: there is nothing behind a first difference.
        if known.level == "full" or known.kind in ("corrupt", "exact"):
            return known
        run = self._run
        run.get(BASELINE, None if run.is_up(BASELINE) else "rescore")
        records = self._asked[config]
        prompts = [self.asks.known(tag) for tag in records]
        self._judged[config] = "full", self._by_baseline(prompts, records)
        return self.overall(config)

    def chat_prompt_tokens(self, config: Config, problem: Problem) -> tuple[int, int] | str:
        """Prompt tokens of a problem as rendered here and as the chat endpoint counts them, or why that cannot be compared."""
        if self.asks.by_text:
            return "the server was asked by chat alone, so nothing was rendered here"
        run = self._run
        server = run.get(config)
        facts = run.facts
        if facts.target is not None and not has_chat_template(facts.target):
            return f"the model at {facts.target} has no chat template"
        request = self.asks.chat_request(problem, Sampling(max_new_tokens=1))
        record = run.await_(self.asks.chat(server).generate(request, stream=False), "coding")
        if record.http_status in ABSENT:
            return f"{server.url} has no /v1/chat/completions (HTTP {record.http_status})"
        if record.http_status != 200 or record.prompt_tokens is None:
            raise fault(run, config, record) or NotSolved(
                f"{config.id}: the chat endpoint did not count a prompt: {record.outcome}: {record.error}"
            )
        return len(self.asks.prompt(problem).ids), record.prompt_tokens

    def _by_baseline(self, prompts: Sequence[Prompt], records: dict[str, Record]) -> list[JudgedAnswer]:
        run = self._run
        scoring = teacher_force(
            run.async_client(run.get(BASELINE)),
            prompts,
            records,
            baseline=self._recorded,
            concurrency=run.settings.coding_concurrency,
        )
        return run.await_(scoring, "coding")

    def _verdicts(
        self, config: Config, judged: Sequence[JudgedAnswer], records: dict[str, Record], level: Level
    ) -> dict[str, Verdict]:
        floor, rule = self._run.verifier.floor_and_rule()
        asked = 1 + self._run.settings.coding_reruns
        alone = replace(rule, alpha=rule.alpha / 2 / max(1, len(judged)) / asked, min_tokens=1)
        assert self._recorded is not None
        eos = self._stop_tokens(self._recorded)
        verdicts = {}
        for one in judged:
            verdict = judge([one], floor, alone, config=config.id, level=level)
            fault = self._ending(records[one.tag], self._recorded.records.get(one.tag), eos)
            if fault is not None:
                before = () if verdict.kind == "unknown" else verdict.reasons
                verdict = replace(verdict, kind="corrupt", reasons=(*before, fault))
            verdicts[one.tag] = verdict
        return verdicts

    def _ending(self, record: Record, baseline: Record | None, eos: frozenset[int]) -> str | None:
        finish = (record.finish_reason or {}).get("type")
        return contradiction(record) or ending_fault(
            emitted_ids(record),
            None if baseline is None else emitted_ids(baseline),
            finish=str(finish) if finish else None,
            eos=eos,
            limit=self._run.settings.coding_output,
        )

    def _stop_tokens(self, recorded: BaselineAnswers) -> frozenset[int]:
        """The model's stop tokens; none where the baseline itself does not keep to what the model's files say."""
        eos = self._run.facts.eos
        kept = all(self._ending(record, None, eos) is None for record in recorded.records.values())
        return eos if kept else frozenset()
