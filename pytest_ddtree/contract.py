"""The exactness contract of one session: each clause is carried out on a config once, and its answers are judged."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from pytest_ddtree.client.client import AsyncClient
from pytest_ddtree.client.impatient import ImpatientClient
from pytest_ddtree.errors import NotVerified
from pytest_ddtree.exactness.contract.catalogue import Clause, judge_evidence
from pytest_ddtree.exactness.contract.evidence import Evidence, Subject
from pytest_ddtree.exactness.contract.parameters import by_parameter, ignored, sampled
from pytest_ddtree.exactness.levels import SelfLevelUnavailable
from pytest_ddtree.exactness.verdict import Verdict
from pytest_ddtree.grid import Config
from pytest_ddtree.liveness import check_serving
from pytest_ddtree.resuming import clause_fields
from pytest_ddtree.servers.handle import Server
from pytest_ddtree.servers.told import whole

if TYPE_CHECKING:
    from pytest_ddtree.run import Run

CLAUSE_DEADLINE_S = 120.0
"""Longest time for one request of a clause: they are short, and a hung server must not cost a night."""


class Contract:
    """Carries out clauses; what they make a config answer is judged like everything that it answers."""

    def __init__(self, run: Run) -> None:
        self._run = run

    def carry_out(self, config: Config, clause: Clause) -> tuple[Evidence, Verdict | None]:
        """Carry out one clause of the contract on a config, or say what came out of it before a run was resumed. See `_judged`."""
        recall = self._run.recall
        known = None if recall is None else recall.clause(config, clause.name)
        if known is not None:
            return known
        evidence, verdict = self._judged(config, clause)
        if evidence.problems:
            # A verdict is about tokens; who reads that alone must see this too.
            self._run.warn(f"{config.id} breaks the contract, {clause.name}: {evidence.problems[0]}")
        self._run.store("clause", config=config.id, clause=clause.name, **clause_fields(evidence, verdict))
        return evidence, verdict

    def _judged(self, config: Config, clause: Clause) -> tuple[Evidence, Verdict | None]:
        """Carry out one clause of the contract on a config; the verdict is on the answers that it produced.

        Judged at level full where the baseline is up, else at level self; level full then comes with `rescore`.

        Raises:
            Infrastructure: it could not be carried out.
        """
        run = self._run
        verifier = run.verifier
        server, floor, rule = verifier.judged_by(config)
        client = run.async_client(server)
        evidence = run.await_(self._evidence(config, clause, server))
        if evidence.problems:
            # What a server did that died or hung meanwhile is no verdict on its answers.
            check_serving(run, config)
        scorer = verifier.scorer()
        if not clause.parameter:
            verifier.keep(config, evidence.prompts, evidence.records)

        def judged(part: Evidence) -> Verdict | None:
            judging = judge_evidence(
                part,
                floor,
                rule,
                config=config.id,
                baseline=scorer,
                itself=client,
                known=verifier.prefilled(config),
                scores=verifier.scores,
            )
            return run.await_(judging)

        try:
            verdict = judged(evidence)
        except SelfLevelUnavailable as error:
            run.progress(f"{config.id}, {clause.name}: judged at the end: {error}")
            if clause.parameter:
                verifier.keep(config, evidence.prompts, evidence.records)
            return evidence, None
        if verdict is not None and verdict.kind == "unknown":
            raise NotVerified(f"{config.id}, {clause.name}: {'; '.join(verdict.reasons)}")
        if verdict is not None and not verdict.passed and clause.parameter:
            return replace(evidence, problems=(*evidence.problems, ignored(verdict))), None
        if clause.parameter:
            alone = {
                name: [one for part in parts if (one := judged(part)) is not None]
                for name, parts in by_parameter(evidence).items()
            }
            problems = [text for name, verdicts in alone.items() if (text := sampled(name, verdicts))]
            if problems:
                return replace(evidence, problems=(*evidence.problems, *problems)), None
        if verdict is not None and not verdict.passed:
            run.results.verdicts.setdefault(config.id, []).append(verdict)
            run.store("verdict", verdict=verdict.as_json(), clause=clause.name)
        return evidence, verdict

    async def _evidence(self, config: Config, clause: Clause, server: Server) -> Evidence:
        async with ImpatientClient(server.url, api_key=self._run.settings.api_key) as client:
            return await clause.procedure(self._subject(config, server, client))

    def _subject(self, config: Config, server: Server, client: AsyncClient) -> Subject:
        run, info = self._run, server.info
        embedded = run.settings.server == "reference"
        return Subject(
            client=client,
            prompts=tuple(run.verifier.prompts(config)),
            decode=run.maker("code").decode_plain,
            output=run.settings.exactness_output,
            long_output=640 if embedded else 2048,
            eos=run.facts.eos,
            vocab_size=run.facts.vocab_size,
            block_size=(config.block_size or run.facts.block_size) if config.speculative else None,
            window=config.window,
            page_size=whole(info.get("page_size")),
            chunked_prefill=whole(info.get("chunked_prefill_size")),
            context_length=whole(info.get("context_length")) or run.facts.max_positions,
            deadline_s=min(CLAUSE_DEADLINE_S, run.settings.request_timeout),
            float32=info.get("dtype") == "float32",
            cache_tokens=whole(info.get("max_total_num_tokens")),
            seed=run.settings.seed,
            known=run.verifier.known_of(config),
        )
