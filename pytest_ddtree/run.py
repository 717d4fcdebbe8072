"""One session: servers, baseline answers, verdicts and figures, each made when first asked for and then remembered.

Knows nothing of pytest. What it needs of the baseline is in the `Plan`; the baseline is asked first, because where one GPU holds
one server it is gone when a config runs.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

from pytest_ddtree import __version__
from pytest_ddtree.client.client import AsyncClient
from pytest_ddtree.client.loop import LoopThread
from pytest_ddtree.client.records import Record
from pytest_ddtree.client.sync import Client
from pytest_ddtree.coding.pairs import CodingSummary, Pair, compare_pairs
from pytest_ddtree.coding.problems import Problem
from pytest_ddtree.coding.stats import Comparison, Gate
from pytest_ddtree.dialects.effective import Mismatch
from pytest_ddtree.errors import Infrastructure
from pytest_ddtree.exactness.baseline import BaselineAnswers, measure_floor, record_baseline
from pytest_ddtree.exactness.contract.catalogue import Clause, judge_evidence
from pytest_ddtree.exactness.contract.evidence import Evidence, Subject
from pytest_ddtree.exactness.floor import NoiseFloor
from pytest_ddtree.exactness.judged import JudgedAnswer
from pytest_ddtree.exactness.levels import (
    Prompt,
    SelfLevelUnavailable,
    collect,
    first_divergence,
    teacher_force,
)
from pytest_ddtree.exactness.report import corruption_report
from pytest_ddtree.exactness.rule import Rule, judge
from pytest_ddtree.exactness.verdict import Level, Verdict
from pytest_ddtree.grid import BASELINE, CellKey, Config, verify_width
from pytest_ddtree.measuring import UnnaturalAnswers, measure_rounds
from pytest_ddtree.model_files import ModelFacts, model_facts
from pytest_ddtree.options import BY_FIELD, Settings, settings_json
from pytest_ddtree.plan import Plan
from pytest_ddtree.results.model import CellFigures, Results, Round, StartInfo
from pytest_ddtree.results.store import Store
from pytest_ddtree.servers.handle import Server
from pytest_ddtree.servers.pool import ServerPool
from pytest_ddtree.servers.settings import ServerSettings
from pytest_ddtree.solving import Solver
from pytest_ddtree.workload.cell import CellSpec
from pytest_ddtree.workload.natural import natural_prompts
from pytest_ddtree.workload.prompts import PromptMaker
from pytest_ddtree.workload.rounds import SamplingRule
from pytest_ddtree.workload.shape import infeasible, longest_output

T = TypeVar("T")


def server_settings(settings: Settings, facts: ModelFacts, run_dir: Path) -> ServerSettings:
    """What the pool must know, from the options and the model's files."""
    concurrency = max(*settings.concurrency, min(64, settings.exactness_prompts))
    return ServerSettings(
        kind=settings.server,
        run_dir=settings.results,
        model=settings.model,
        draft_model=settings.draft_model,
        server_args=settings.server_args,
        spec_args=settings.spec_args,
        baseline_args=settings.baseline_args,
        python=None if settings.python is None else str(settings.python),
        sglang_src=settings.sglang_src,
        launch_prefix=settings.launch_prefix,
        stop_command=() if settings.stop_command is None else ("sh", "-c", settings.stop_command),
        dialect=settings.dialect,
        url=settings.url,
        baseline_url=settings.baseline_url,
        ssh=settings.ssh,
        unit=settings.unit,
        start_timeout_s=settings.start_timeout,
        api_key=settings.api_key,
        max_concurrency=concurrency,
        context_length=64
        + max(
            max(settings.context) + max(settings.output, settings.exactness_output),
            settings.coding_output + 1024,
        ),
        seed=settings.seed,
        block_size=facts.block_size,
    )


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


class Infeasible(Exception):
    """A cell that the server cannot hold: nothing is wrong, and nothing can be measured."""


class NotVerified(Infrastructure):
    """A config could not be judged; the text says why. Never a pass, and no verdict on the engine either."""


@dataclass(slots=True)
class Baseline:
    """What the non-speculative server said: answers with logprobs at every position, and its noise against itself."""

    answers: BaselineAnswers
    floor: NoiseFloor


class Run:
    """Everything that a session shares. Not thread-safe, apart from `close`."""

    def __init__(
        self,
        settings: Settings,
        configs: tuple[Config, ...],
        plan: Plan,
        *,
        progress: Callable[[str], None],
        on_verified: Callable[[Config, Verdict], None] = lambda config, verdict: None,
        on_measured: Callable[[Config, CellFigures], None] = lambda config, figures: None,
    ) -> None:
        self.settings = settings
        self.configs = configs
        self.plan = plan
        self.results = Results()
        self.run_dir = settings.results / f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{os.getpid()}"
        self.facts: ModelFacts = model_facts(settings)
        self._progress = progress
        self._on_verified = on_verified
        self._on_measured = on_measured
        self._loop = LoopThread()
        self._store: Store | None = None
        self._pool: ServerPool | None = None
        self._clients: dict[str, AsyncClient] = {}
        self._makers: dict[str, PromptMaker] = {}
        self._baseline: Baseline | Infrastructure | None = None
        self._verdicts: dict[Config, Verdict | Infrastructure] = {}
        self._answers: dict[Config, list[tuple[tuple[Prompt, ...], dict[str, Record]]]] = {}
        self._solver: Solver | None = None
        self._indices: dict[tuple[str, int], tuple[int, ...]] = {}
        self._coding_baseline: BaselineAnswers | None = None
        self._known_starts = 0

    def store(self, kind: str, **fields: Any) -> None:
        """Append one record to the session's results file, which exists from the first one on."""
        if self._store is None:
            self._store = Store(self.run_dir / "results.jsonl")
            self._store.append(
                "run",
                plugin=__version__,
                started=datetime.now(UTC).isoformat(),
                settings=settings_json(self.settings),
            )
        self._store.append(kind, **fields)

    # Servers.

    def server(self, config: Config) -> Server:
        """The server of a config, ready. What is needed of the baseline is fetched before a speculative server takes its place."""
        if config.speculative and self.plan.needs_baseline:
            self.baseline_first()
        return self._get(config, None)

    def _get(self, config: Config, reason: str | None) -> Server:
        try:
            server = self._open_pool().get(config, reason)
        finally:
            self._note_starts()
        effective = server.effective.to_json()
        if self.results.effective.get(config.id) != effective:
            self.results.effective[config.id] = effective
            self.store("effective", config=config.id, effective=effective)
        return server

    def _open_pool(self) -> ServerPool:
        if self._pool is None:
            self._pool = ServerPool(
                server_settings(self.settings, self.facts, self.run_dir), progress=self._progress
            )
            self._pool.wake_on_signals()
        return self._pool

    def _note_starts(self) -> None:
        starts = self._open_pool().starts
        for start in starts[self._known_starts :]:
            self.results.starts.append(StartInfo(start.config.id, start.reason, start.seconds))
            self.store(
                "start", config=start.config.id, reason=start.reason, seconds=start.seconds, ok=start.ok
            )
        self._known_starts = len(starts)

    def mismatches(self, server: Server) -> Sequence[Mismatch]:
        """Knobs that are not in force as asked, by name and value."""
        return server.mismatches()

    def async_client(self, server: Server) -> AsyncClient:
        """The asynchronous client of a server, one per address."""
        if server.url not in self._clients:
            self._clients[server.url] = AsyncClient(server.url, api_key=self.settings.api_key)
        return self._clients[server.url]

    def client(self, server: Server) -> Client:
        """A synchronous client of a server, on the session's own loop."""
        return Client(server.url, api_key=self.settings.api_key, loop=self._loop)

    def await_(self, awaited: Awaitable[T]) -> T:
        """The result of what is awaited in the session's own loop; Ctrl-C cancels it."""

        async def run() -> T:
            return await awaited

        return self._loop.run(run())

    # Prompts.

    def maker(self, workload: str) -> PromptMaker:
        """Makes prompts of one workload class for the target model."""
        if workload not in self._makers:
            if self.facts.target is None:
                raise NotVerified(
                    f"{BY_FIELD['model'].flag} {self.settings.model}: prompts of an exact length need the model's tokenizer.json, "
                    "directory on this host. Give the path of a directory that holds tokenizer.json and config.json."
                )
            thinking = {"on": True, "off": False, "default": None}[self.settings.thinking]
            self._makers[workload] = PromptMaker(
                self.facts.target, workload=workload, seed=self.settings.seed, thinking=thinking
            )
        return self._makers[workload]

    def exactness_prompts(self) -> list[Prompt]:
        """Prompts of ragged lengths, short to 1024 tokens, some beyond: equal lengths hide a mix-up of rows."""
        count = self.settings.exactness_prompts
        maker = self.maker("code")
        longest = min(1024, max(self.settings.context))
        shortest = min(longest, maker.minimum + 8)
        prompts = []
        for index in range(count):
            # Geometric steps: half of the prompts are short and cheap, and no two have the same length.
            length = round(shortest * (longest / shortest) ** (index / max(1, count - 1))) + index % 3
            made = maker.make(length, index, purpose="exactness")
            prompts.append(Prompt(tag=made.tag, ids=made.ids))
        return prompts

    @property
    def exactness_concurrency(self) -> int:
        """Requests in flight in the concurrent half of verification."""
        return min(32, max(self.settings.concurrency), self.settings.exactness_prompts)

    # The baseline.

    def baseline_first(self) -> None:
        """Fetch all that the plan needs of the baseline: answers, noise floor, the cells that speedups are relative to."""
        if isinstance(self._baseline, Infrastructure):
            raise self._baseline
        fresh = self._baseline is None
        _ = self.baseline
        if fresh:
            for key in sorted(self.plan.cells):
                self.measure(BASELINE, key)
            if self.plan.problems:
                self.solver.solve(BASELINE, self.plan.problems)

    @property
    def baseline(self) -> Baseline:
        """Answers and noise floor of the non-speculative server; made on first use."""
        if self._baseline is None:
            try:
                self._baseline = self._record_baseline()
            except Infrastructure as error:
                self._baseline = error
        if isinstance(self._baseline, Infrastructure):
            raise self._baseline
        return self._baseline

    def _record_baseline(self) -> Baseline:
        server = self._get(BASELINE, None)
        client = self.async_client(server)
        concurrency = self.exactness_concurrency
        conditions = sorted(
            {1, concurrency, min(self.settings.exactness_prompts, 64, concurrency * self._widest())}
        )
        prompts = self.exactness_prompts()
        widths = ", ".join(map(str, conditions))
        self._progress(f"baseline: answers and noise floor of {len(prompts)} prompts at concurrency {widths}")
        output = self.settings.exactness_output
        answers, floor = self.await_(
            measure_floor(client, prompts, output=output, concurrencies=conditions, ignore_eos=True)
        )
        return Baseline(answers, floor)

    def _widest(self) -> int:
        size = self.facts.block_size or 16
        return max((verify_width(config, size) for config in self.configs), default=1)

    # Verification.

    def verify(self, config: Config) -> Verdict:
        """The verdict on a config, made once.

        Raises:
            Infrastructure: it could not be judged.
        """
        known = self._verdicts.get(config)
        if known is None:
            try:
                known = self._verify(config)
            except Infrastructure as error:
                known = error
            self._verdicts[config] = known
        if isinstance(known, Infrastructure):
            raise known
        if known.kind == "unknown":
            raise NotVerified(f"{config.id}: unknown, which is no pass: {'; '.join(known.reasons)}")
        return known

    def _verify(self, config: Config) -> Verdict:
        baseline = self.baseline
        server = self._get(config, None)
        prompts = self.exactness_prompts()
        output = self.settings.exactness_output
        concurrency = self.exactness_concurrency
        self._progress(
            f"{config.id}: verifying {len(prompts)} answers, serial and at concurrency {concurrency}"
        )
        client = self.async_client(server)
        judged: list[JudgedAnswer] = []
        level: Level = "full" if self._baseline_is_up() else "first-divergence"
        for width, asked in ((1, prompts[::2]), (concurrency, prompts)):
            # Answers go on past their end: a model that answers in 25 tokens would leave most of a fault unseen.
            records = self.await_(collect(client, asked, output=output, concurrency=width, ignore_eos=True))
            self._keep_answers(config, asked, records)
            if level == "full":
                scorer = self.async_client(self._get(BASELINE, None))
                judged += self.await_(
                    teacher_force(scorer, asked, records, baseline=baseline.answers, concurrency=concurrency)
                )
            else:
                judged += first_divergence(asked, records, baseline.answers)
        verdict = judge(judged, baseline.floor, self._rule(), config=config.id, level=level)
        return self._note_verdict(config, verdict)

    def _note_verdict(self, config: Config, verdict: Verdict) -> Verdict:
        self.results.verdicts.setdefault(config.id, []).append(verdict)
        self.store("verdict", verdict=verdict.as_json())
        self._progress(f"{config.id}: {verdict.summary()}")
        self._on_verified(config, verdict)
        return verdict

    def _keep_answers(self, config: Config, prompts: Sequence[Prompt], records: dict[str, Record]) -> None:
        """Keep answers for the report of a corruption, and for level full where the baseline is not up now."""
        self._answers.setdefault(config, []).append((tuple(prompts), records))

    def contract(self, config: Config, clause: Clause) -> tuple[Evidence, Verdict | None]:
        """Carry out one clause of the contract on a config; the verdict is on the answers that it produced.

        Judged at level full where the baseline is up, else at level self; level full then comes with `rescore`.

        Raises:
            Infrastructure: it could not be carried out.
        """
        baseline = self.baseline
        server = self._get(config, None)
        client = self.async_client(server)
        evidence = self.await_(clause.procedure(self._subject(config, server)))
        scorer = self.async_client(self._get(BASELINE, None)) if self._baseline_is_up() else None
        self._keep_answers(config, evidence.prompts, evidence.records)
        judging = judge_evidence(
            evidence, baseline.floor, self._rule(), config=config.id, baseline=scorer, itself=client
        )
        try:
            verdict = self.await_(judging)
        except SelfLevelUnavailable as error:
            self._progress(f"{config.id}, {clause.name}: judged at the end: {error}")
            return evidence, None
        if verdict is not None and not verdict.passed:
            self.results.verdicts.setdefault(config.id, []).append(verdict)
            self.store("verdict", verdict=verdict.as_json(), clause=clause.name)
        return evidence, verdict

    def _subject(self, config: Config, server: Server) -> Subject:
        info = server.info
        return Subject(
            client=self.async_client(server),
            prompts=tuple(self.exactness_prompts()),
            decode=self.maker("code").decode_plain,
            output=self.settings.exactness_output,
            long_output=2048 if self.settings.server != "reference" else 512,
            eos=self.facts.eos,
            vocab_size=self.facts.vocab_size,
            block_size=(config.block_size or self.facts.block_size) if config.speculative else None,
            window=config.window,
            page_size=_whole(info.get("page_size")),
            chunked_prefill=_whole(info.get("chunked_prefill_size")),
            context_length=_whole(info.get("context_length")) or self.facts.max_positions,
            seed=self.settings.seed,
        )

    def rescore(self, config: Config) -> Verdict:
        """Level full for everything that a config has answered; starts the baseline once more where it had to go.

        Raises:
            Infrastructure: there is nothing to judge, or no baseline to judge it.
        """
        known = self.results.verdict(config.id)
        if known is not None and (known.level == "full" or not known.passed):
            return known
        kept = self._answers.get(config, [])
        if not kept:
            raise NotVerified(f"{config.id}: nothing was recorded that level full could judge")
        baseline = self.baseline
        scorer = self.async_client(self._get(BASELINE, None if self._baseline_is_up() else "rescore"))
        judged: list[JudgedAnswer] = []
        for prompts, records in kept:
            judged += self.await_(
                teacher_force(
                    scorer,
                    prompts,
                    records,
                    baseline=baseline.answers,
                    concurrency=self.exactness_concurrency,
                )
            )
        verdict = judge(judged, baseline.floor, self._rule(), config=config.id, level="full")
        return self._note_verdict(config, verdict)

    def explain(self, config: Config, verdict: Verdict) -> str:
        """The report of a verdict that did not pass: the worst tokens in their text, and how to see them again."""
        prompts: dict[str, Prompt] = {}
        shown: dict[str, Record] = {}
        for worst in verdict.worst:
            for asked, records in self._answers.get(config, []):
                record = records.get(worst.tag)
                emitted = () if record is None else record.output_ids
                at = worst.position
                if record is not None and at < len(emitted) and emitted[at] == worst.score.token_id:
                    shown[worst.tag] = record
                    prompts[worst.tag] = next(prompt for prompt in asked if prompt.tag == worst.tag)
        return corruption_report(verdict, prompts, shown, decode=self.maker("code").decode)

    def _baseline_is_up(self) -> bool:
        return self._open_pool().peek(BASELINE) is not None

    def _rule(self) -> Rule:
        gap_min = self.settings.gap_min
        if gap_min is None:
            gap_min = 1e-3 if self._float32() else 1.0
        return Rule(
            gap_factor=self.settings.gap_factor,
            gap_min=gap_min,
            share_factor=self.settings.share_factor,
            share_margin=self.settings.share_margin,
            # The design rate is a session's: every config that is judged takes its part of it.
            alpha=self.settings.alpha / max(1, len(self.configs)),
        )

    def _float32(self) -> bool:
        info = self._get(BASELINE, None).info if self._baseline_is_up() else {}
        return info.get("dtype") == "float32"

    # Speed.

    def measure(self, config: Config, key: CellKey) -> CellFigures:
        """The figures of one cell, measured once.

        Raises:
            Infrastructure: it could not be measured.
        """
        known = self.results.cells.get((config.id, key))
        if known is not None:
            return known
        server = self._get(config, None)
        self._refuse_infeasible(server, key)
        try:
            rounds = self._rounds(server, config, key)
        except UnnaturalAnswers:
            if config.speculative or (key.workload, key.context) in self._indices:
                raise
            self._choose_prompts(server, key)
            rounds = self._rounds(server, config, key)
        server.check_alive()
        figures = CellFigures(config=config.id, key=key, rounds=rounds)
        self.results.cells[(config.id, key)] = figures
        self._on_measured(config, figures)
        return figures

    def _rounds(self, server: Server, config: Config, key: CellKey) -> tuple[Round, ...]:
        settings = self.settings
        rule = SamplingRule(
            precision=settings.precision,
            min_rounds=min(settings.min_rounds, settings.rounds),
            max_rounds=settings.rounds,
        )
        return self.await_(
            measure_rounds(
                self.async_client(server),
                self.maker(key.workload),
                key,
                self._spec(key),
                rule,
                config=config.id,
                eos=self.facts.eos,
                indices=self._indices.get((key.workload, key.context)),
                keep=lambda one: self.store("round", round=one.as_json()),
                deadline_s=settings.request_timeout,
            )
        )

    def _spec(self, key: CellKey) -> CellSpec:
        return CellSpec(
            context=key.context,
            concurrency=key.concurrency,
            output=self.settings.output,
            temperature=key.temperature,
            turnovers=self.settings.turnovers,
            seed=self.settings.seed,
        )

    def _refuse_infeasible(self, server: Server, key: CellKey) -> None:
        reason = infeasible(
            concurrency=key.concurrency,
            context=key.context,
            output=longest_output(self.settings.output),
            max_total_tokens=_whole(server.info.get("max_total_num_tokens")),
            max_request_tokens=_whole(server.info.get("max_req_input_len")),
        )
        if reason is not None:
            raise Infeasible(f"{key.id}: {reason}")

    def _choose_prompts(self, server: Server, key: CellKey) -> None:
        """Choose prompts whose natural answer on the baseline is long enough, for every config."""
        self._progress(f"baseline: choosing prompts of {key.context} tokens with long natural answers")
        maker = self.maker(key.workload)
        chosen = self.await_(
            natural_prompts(
                self.async_client(server),
                lambda index: maker.make(key.context, index),
                max(self.settings.concurrency) * (self.settings.turnovers + 1),
                output=longest_output(self.settings.output),
                concurrency=max(self.settings.concurrency),
                deadline_s=self.settings.request_timeout,
            )
        )
        numbers = {maker.make(key.context, index).tag: index for index in range(4 * len(chosen))}
        self._indices[(key.workload, key.context)] = tuple(numbers[prompt.tag] for prompt in chosen)

    # The coding eval.

    def pair(self, config: Config, problem: Problem) -> Pair:
        """Both answers to a problem; all problems of the plan are asked at once, the first time. Raises Infrastructure."""
        return self.solver.pairs(config, self.plan.problems or (problem,))[problem.task_id]

    def coding_comparison(self, config: Config, problems: Sequence[Problem]) -> Comparison:
        """The paired comparison over all problems. Raises Infrastructure."""
        return compare_pairs(list(self.solver.pairs(config, problems).values()), self._gate)

    @property
    def _gate(self) -> Gate:
        return Gate(alpha=self.settings.coding_alpha, margin=self.settings.coding_margin)

    @property
    def solver(self) -> Solver:
        """Answers and grades coding problems; made on first use."""
        if self._solver is None:
            self._solver = Solver(
                self,
                sandbox=self.settings.sandbox,
                gate=self._gate,
                progress=self._progress,
                on_summary=self._keep_summary,
            )
        return self._solver

    def _keep_summary(self, summary: CodingSummary) -> None:
        self.results.coding[summary.config] = summary
        self.store("coding", coding=summary.as_json())

    def chat_ids(self, question: str) -> tuple[int, ...]:
        """The token ids of a chat prompt with this question, thinking as the options say."""
        return self.maker("code").chat_ids(question)

    def opens_thinking(self, question: str) -> bool:
        """Whether the chat prompt of this question ends inside a thinking section."""
        return self.maker("code").opens_thinking(question)

    def answer(self, config: Config, prompts: Sequence[Prompt]) -> dict[str, Record]:
        """Greedy answers of a config to coding problems; the baseline's are kept with their logprobs."""
        client = self.async_client(self._get(config, None))
        output, concurrency = self.settings.coding_output, self.settings.coding_concurrency
        if config != BASELINE:
            return self.await_(collect(client, prompts, output=output, concurrency=concurrency))
        self._coding_baseline = self.await_(
            record_baseline(client, prompts, output=output, concurrency=concurrency)
        )
        return dict(self._coding_baseline.records)

    def judge_answers(
        self, config: Config, prompts: Sequence[Prompt], records: dict[str, Record]
    ) -> dict[str, Verdict]:
        """The verdict on each answer of a config, judged alone; false alarms are bounded over all of them together."""
        floor = self.baseline.floor
        recorded = self._coding_baseline
        if recorded is None:
            raise NotVerified(
                f"{config.id}: the baseline was not asked for its answers to the coding problems"
            )
        if self._baseline_is_up():
            level: Level = "full"
            scorer = self.async_client(self._get(BASELINE, None))
            concurrency = self.settings.coding_concurrency
            judged = self.await_(
                teacher_force(scorer, prompts, records, baseline=recorded, concurrency=concurrency)
            )
        else:
            level = "first-divergence"
            judged = first_divergence(prompts, records, recorded)
        rule = self._rule()
        rule = replace(rule, alpha=rule.alpha / max(1, len(prompts)))
        return {one.tag: judge([one], floor, rule, config=config.id, level=level) for one in judged}

    def alarm(self) -> None:
        """Begin to stop every server and return at once; for signal handlers."""
        if self._pool is not None:
            self._pool.alarm()

    def close(self) -> None:
        """Stop the servers, then the loop. May be called twice, also by a signal handler's way out."""
        if self._solver is not None:
            self._solver.close()
        if self._pool is not None:
            try:
                self._pool.close()
            finally:
                self._note_starts()
        if self._store is not None:
            self._store.close()
        self._loop.close()
