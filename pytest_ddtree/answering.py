"""The coding eval's side of the servers: prompts, answers by ids or by chat, and the verdict on each answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from pytest_ddtree.client.client import AsyncClient
from pytest_ddtree.client.records import Record, Request, Sampling
from pytest_ddtree.coding.endings import ending_fault
from pytest_ddtree.coding.problems import Problem
from pytest_ddtree.errors import Infrastructure
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

if TYPE_CHECKING:
    from pytest_ddtree.run import Run

_SEED_STEP = 1_000_003
_ABSENT = frozenset({403, 404, 405, 501})


class NotSolved(Infrastructure):
    """A problem has no usable pair of answers; the text says why."""


class CodingAnswers:
    """Asks the servers of a session and judges what they say. Every answer has the tag of its problem."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._recorded: BaselineAnswers | None = None
        self._prompts: dict[str, Prompt] = {}
        self._chats: dict[str, AsyncClient] = {}
        self._by_text: bool | None = None
        self._judged: dict[Config, tuple[Level, list[JudgedAnswer]]] = {}
        self._asked: dict[Config, dict[str, Record]] = {}

    @property
    def by_text(self) -> bool:
        """Whether only texts can be compared: the server has a chat endpoint and no /generate, or the options say so."""
        if self._by_text is None:
            self._by_text = self._ask_for_text()
        return self._by_text

    def conditions(self) -> str:
        """How the answers were had, in one line for reports."""
        settings = self._run.settings
        parts = [
            f"thinking {settings.thinking}",
            f"temperature {settings.coding_temperature:g}",
            f"at most {settings.coding_output} tokens",
            f"{settings.coding_concurrency} at a time",
        ]
        if self.by_text:
            parts.append(
                "asked by chat, judged by text: the server sends no token ids, so no token is verified"
            )
        else:
            parts.append("asked by token ids" if settings.coding_temperature else "judged by token ids")
        return ", ".join(parts)

    def opens_thinking(self, problem: Problem) -> bool:
        """Whether the chat prompt of this problem ends inside a thinking section."""
        if self.by_text and self._run.facts.target is None:
            return False
        return self._run.maker("code").opens_thinking(problem.question)

    def can_ask(self, config: Config) -> bool:
        """Whether the server of a config runs now."""
        return self._run.is_up(config)

    def first(self, config: Config, problems: Sequence[Problem]) -> dict[str, Record]:
        """Greedy answers of a config: task id -> record. The baseline's are kept with their logprobs."""
        if config != BASELINE or self.by_text:
            return self.again(config, problems, 0)
        run, settings = self._run, self._run.settings
        recording = record_baseline(
            run.async_client(run.get(config)),
            self._prompts_of(problems),
            output=settings.coding_output,
            concurrency=settings.coding_concurrency,
        )
        found = run.await_(recording, "coding")
        if self._recorded is not None:
            found = BaselineAnswers(
                {**self._recorded.records, **found.records}, {**self._recorded.scores, **found.scores}
            )
        self._recorded = found
        return {problem.task_id: found.records[problem.task_id] for problem in problems}

    def again(self, config: Config, problems: Sequence[Problem], number: int) -> dict[str, Record]:
        """One more answer of a config to each problem; with a temperature, `number` chooses the seed."""
        run, settings = self._run, self._run.settings
        server = run.get(config)
        client = self._chat(server.url) if self.by_text else run.async_client(server)

        async def ask(numbered: tuple[int, Problem]) -> Record:
            index, problem = numbered
            record = await client.generate(
                self._request(problem, settings.seed + number * _SEED_STEP + index)
            )
            if not record.ok:
                raise AnswerFailed(record, "an answer to a coding problem")
            return record

        try:
            records = run.await_(each(ask, list(enumerate(problems)), settings.coding_concurrency), "coding")
        except AnswerFailed as error:
            raise fault(run, config, error.record) or error from None
        return {problem.task_id: record for problem, record in zip(problems, records, strict=True)}

    def judge(
        self, config: Config, problems: Sequence[Problem], records: dict[str, Record], *, first: bool
    ) -> dict[str, Verdict] | None:
        """The verdict on each answer, judged alone: task id -> verdict; None where only texts can be compared.

        False alarms are bounded over all answers together: half of the session's rate for single answers, half for all of them as
        one. `first` answers are kept for `overall`. An answer too short to be judged by shares is judged by its gaps.

        Raises:
            NotSolved: the baseline was not asked for its own answers.
        """
        if self.by_text:
            return None
        run = self._run
        if self._recorded is None:
            raise NotSolved(f"{config.id}: the baseline was not asked for its answers to the coding problems")
        prompts = self._prompts_of(problems)
        level: Level = "first-divergence"
        if run.is_up(BASELINE):
            level = "full"
            judged = self._by_baseline(prompts, records)
        else:
            judged = first_divergence(prompts, records, self._recorded)
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
        return replace(verdict, kind="corrupt", reasons=(*verdict.reasons, *named))

    def at_level_full(self, config: Config) -> Verdict:
        """`overall` by a live baseline, which is started once more where it had to go. Raises Infrastructure."""
        known = self.overall(config)
        # The baseline's own tokens throughout: there is nothing behind a first difference.
        if known.level == "full" or known.kind in ("corrupt", "exact"):
            return known
        run = self._run
        run.get(BASELINE, None if run.is_up(BASELINE) else "rescore")
        records = self._asked[config]
        prompts = [self._prompts[tag] for tag in records]
        self._judged[config] = "full", self._by_baseline(prompts, records)
        return self.overall(config)

    def chat_prompt_tokens(self, config: Config, problem: Problem) -> tuple[int, int] | str:
        """Prompt tokens of a problem as rendered here and as the chat endpoint counts them, or why that cannot be compared."""
        if self.by_text:
            return "the server was asked by chat alone, so nothing was rendered here"
        run = self._run
        server = run.get(config)
        facts = run.facts
        if facts.target is not None and not has_chat_template(facts.target):
            return f"the model at {facts.target} has no chat template"
        request = self._chat_request(problem, Sampling(max_new_tokens=1))
        record = run.await_(self._chat(server.url).generate(request, stream=False), "coding")
        if record.http_status in _ABSENT:
            return f"{server.url} has no /v1/chat/completions (HTTP {record.http_status})"
        if record.http_status != 200 or record.prompt_tokens is None:
            raise fault(run, config, record) or NotSolved(
                f"{config.id}: the chat endpoint did not count a prompt: {record.outcome}: {record.error}"
            )
        return len(self._prompt(problem).ids), record.prompt_tokens

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
                verdict = replace(verdict, kind="corrupt", reasons=(*verdict.reasons, fault))
            verdicts[one.tag] = verdict
        return verdicts

    def _ending(self, record: Record, baseline: Record | None, eos: frozenset[int]) -> str | None:
        finish = (record.finish_reason or {}).get("type")
        return ending_fault(
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

    def _request(self, problem: Problem, seed: int) -> Request:
        settings = self._run.settings
        sampling = Sampling(max_new_tokens=settings.coding_output)
        if settings.coding_temperature > 0:
            # What a model's generation config would add is switched off, so that both servers sample from the same distribution.
            sampling = replace(
                sampling,
                temperature=settings.coding_temperature,
                top_p=settings.coding_top_p,
                top_k=-1,
                min_p=0.0,
                seed=seed,
            )
        if self.by_text:
            return self._chat_request(problem, sampling)
        return Request(sampling=sampling, input_ids=self._prompt(problem).ids, tag=problem.task_id)

    def _chat_request(self, problem: Problem, sampling: Sampling) -> Request:
        thinking = self._run.settings.enable_thinking
        extra = {} if thinking is None else {"chat_template_kwargs": {"enable_thinking": thinking}}
        return Request(sampling=replace(sampling, extra=extra), text=problem.question, tag=problem.task_id)

    def _prompt(self, problem: Problem) -> Prompt:
        if problem.task_id not in self._prompts:
            ids = self._run.maker("code").chat_ids(problem.question)
            self._prompts[problem.task_id] = Prompt(problem.task_id, ids)
        return self._prompts[problem.task_id]

    def _prompts_of(self, problems: Sequence[Problem]) -> list[Prompt]:
        return [self._prompt(problem) for problem in problems]

    def _chat(self, url: str) -> AsyncClient:
        if url not in self._chats:
            settings = self._run.settings
            self._chats[url] = AsyncClient(
                url, api_key=settings.api_key, timeout_s=settings.request_timeout, api="chat"
            )
        return self._chats[url]

    def _ask_for_text(self) -> bool:
        run, api = self._run, self._run.settings.coding_api
        if api != "auto":
            return api == "chat"
        server = run.get(BASELINE)
        one = Request(sampling=Sampling(max_new_tokens=1), input_ids=(1, 2, 3), tag="is there a /generate")
        record = run.await_(run.async_client(server).generate(one, stream=False), "coding")
        if record.http_status not in _ABSENT:
            return False
        run.progress(
            f"{server.url} has no /generate (HTTP {record.http_status}): coding answers are asked by chat and judged by text"
        )
        return True
