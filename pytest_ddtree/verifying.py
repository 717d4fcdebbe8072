"""Verification of one session: the baseline's answers and noise, verdicts by level, the contract, level full at the end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from pytest_ddtree.baselines import Baseline, BaselineOnce
from pytest_ddtree.client.client import AsyncClient
from pytest_ddtree.client.records import Record
from pytest_ddtree.errors import Infrastructure, NotVerified
from pytest_ddtree.exactness.concluding import conclude
from pytest_ddtree.exactness.contract.evidence import AnswerKey
from pytest_ddtree.exactness.floor import NoiseFloor, assumed_floor
from pytest_ddtree.exactness.judged import JudgedAnswer
from pytest_ddtree.exactness.levels import (
    AnswerFailed,
    Prefilled,
    Prompt,
    SelfLevelUnavailable,
    collect,
    first_divergence,
    self_consistency,
    teacher_force,
)
from pytest_ddtree.exactness.rule import Rule
from pytest_ddtree.exactness.scores import Scores
from pytest_ddtree.exactness.verdict import Level, Verdict
from pytest_ddtree.exactness_prompts import prompts_of
from pytest_ddtree.exactness_rule import rule_of
from pytest_ddtree.grid import BASELINE, Config
from pytest_ddtree.liveness import fault
from pytest_ddtree.servers.handle import Server

if TYPE_CHECKING:
    from pytest_ddtree.run import Run


class Verifier:
    """Judges configs; every verdict is made once and remembered."""

    def __init__(self, run: Run, *, on_verified: Callable[[Config, Verdict], None]) -> None:
        self._run = run
        self._settings = run.settings
        self._on_verified = on_verified
        self.scores = Scores()
        """What teacher forcing said of a token after a prefix, so that it is asked once."""
        self._baseline = BaselineOnce(run, self.scores)
        self._verdicts: dict[Config, Verdict | Infrastructure] = {}
        self._answers: dict[Config, list[tuple[tuple[Prompt, ...], dict[str, Record]]]] = {}
        self._beside: dict[Config, dict[str, Record]] = {}
        self._prefilled: dict[Config, Prefilled] = {}
        self._known: dict[Config, dict[AnswerKey, Record]] = {}
        self._failed_ahead: dict[Config, AnswerFailed] = {}

    @property
    def baseline(self) -> Baseline:
        """Answers and noise floor of the non-speculative server; made on first use. Raises Infrastructure."""
        return self._baseline.get()

    def begin_baseline(self) -> bool:
        """Begin to ask the baseline, while the caller does something else; whether that is so. What comes of it shows in `baseline`."""
        return self._baseline.begin()

    @property
    def has_answers(self) -> bool:
        """Whether there are answers of a non-speculative server, its own or recorded ones."""
        return self._run.has_baseline or self._settings.records is not None

    def prompts(self, config: Config | None = None) -> list[Prompt]:
        """The prompts that prove a config's exactness; without a config, those that all configs share."""
        return prompts_of(self._run, config)

    @property
    def concurrency(self) -> int:
        """Requests in flight in the concurrent half of verification."""
        return min(32, max(self._settings.concurrency), self._settings.exactness_prompts)

    def verify(self, config: Config) -> Verdict:
        """The verdict on a config, made once.

        Raises:
            Infrastructure: it could not be judged.
        """
        known = self._verdicts.get(config)
        if known is None:
            try:
                known = self._taken_over(config) or self._verify(config)
            except Infrastructure as error:
                known = error
            self._verdicts[config] = known
        if isinstance(known, Infrastructure):
            raise known
        return _judged(known)

    def forget(self, config: Config) -> None:
        """Judge a config again when its verdict is wanted next: another process answers now."""
        for known in (self._verdicts, self._prefilled, self._known, self._beside, self._failed_ahead):
            known.pop(config, None)

    def _taken_over(self, config: Config) -> Verdict | None:
        """The verdict of a config that an interrupted run completed."""
        recalled = None if self._run.recall is None else self._run.recall.verdict(config)
        if recalled is None:
            return None
        known, every = recalled
        self._run.results.verdicts[config.id] = list(every)
        self._run.progress(f"{config.id}: as judged before: {known.summary()}")
        self._on_verified(config, known)
        return known

    def rescore(self, config: Config) -> Verdict:
        """Level full for everything that a config has answered; starts the baseline once more where it had to go.

        Raises:
            Infrastructure: it does not answer, or there is no baseline to judge it.
        """
        run = self._run
        if (run.recall is not None and run.recall.complete(config)) or not self._answers.get(config):
            # Taken over, or this test is the only one selected: nothing was asked of the config in this session.
            self._ask(config)
        known = run.results.verdict(config.id)
        if known is not None and (known.level == "full" or known.kind == "corrupt"):
            return _judged(known)
        kept = self._answers[config]
        baseline = self.baseline
        scorer = run.async_client(run.get(BASELINE, None if run.is_up(BASELINE) else "rescore"))
        judged: list[JudgedAnswer] = []
        for prompts, records in kept:
            scoring = teacher_force(
                scorer,
                prompts,
                records,
                baseline=baseline.answers,
                concurrency=self.concurrency,
                known=self.scores,
            )
            judged += run.await_(scoring)
        verdict = conclude(
            judged, baseline.floor, self.rule(baseline.float32), config=config.id, level="full"
        )
        return _judged(self._note(config, verdict))

    def _ask(self, config: Config) -> None:
        try:
            self.verify(config)
        except NotVerified:
            # Too little for the level at which it was judged may be enough for level full.
            if not self._answers.get(config):
                raise

    def prefilled(self, config: Config) -> Prefilled:
        """What a config's own prefill said of prefixes, at level self."""
        return self._prefilled.setdefault(config, {})

    def side_by_side(self, config: Config) -> dict[str, Record]:
        """The answers to all prompts, asked side by side when the config was verified, else now: tag -> record. Raises Infrastructure."""
        if config not in self._beside:
            self._run.server(config)
        return self._together(config)

    def _together(self, config: Config) -> dict[str, Record]:
        if config not in self._beside:
            client = self._run.async_client(self._run.get(config))
            output = self._settings.exactness_output
            self._beside[config] = self._collect(
                config, client, self.prompts(config), output=output, concurrency=self.concurrency
            )
        return self._beside[config]

    def ask_ahead(self, config: Config) -> None:
        """Ask a config what its verdict needs while the baseline still answers; an answer that fails fails its verdict.

        Raises:
            Infrastructure: the server died or hangs.
        """
        prompts = self.prompts(config)
        try:
            self._one_by_one(config, self._alone(prompts))
            self._together(config)
        except AnswerFailed as error:
            self._failed_ahead[config] = error

    def _alone(self, prompts: Sequence[Prompt]) -> list[Prompt]:
        """The prompts of the serial half: every second one and the last, which is the longest."""
        return [*prompts[:-1:2], prompts[-1]]

    def _one_by_one(self, config: Config, asked: Sequence[Prompt]) -> dict[str, Record]:
        client = self._run.async_client(self._run.get(config))
        # Answers go on past their end: a model that answers in 25 tokens would leave most of a fault unseen.
        output = self._settings.exactness_output
        return self._collect(config, client, asked, output=output, concurrency=1)

    def answers(self, config: Config) -> list[tuple[tuple[Prompt, ...], dict[str, Record]]]:
        """Everything that a config has answered and that can be judged, in groups that were asked for together."""
        return self._answers.get(config, [])

    def floor_and_rule(self, server: Server | None = None) -> tuple[NoiseFloor, Rule]:
        """What answers are judged by: the baseline's floor, or an assumed one where there is no baseline at all.

        An assumed floor is as low as float32 allows where `server`, which gave the answers, says that it computes so.
        """
        if self.has_answers:
            baseline = self.baseline
            return baseline.floor, self.rule(baseline.float32)
        float32 = server is not None and server.info.get("dtype") == "float32"
        return assumed_floor(float32=float32), self.rule(float32)

    def judged_by(self, config: Config) -> tuple[Server, NoiseFloor, Rule]:
        """The server of a config, ready, and what its answers are judged by. Raises Infrastructure."""
        if self.has_answers:
            # The baseline first: where one GPU holds one server, it goes when this config comes.
            _ = self.baseline
        server = self._run.get(config)
        return server, *self.floor_and_rule(server)

    def rule(self, float32: bool) -> Rule:
        """The rule for a server of this session's model that computes in float32 or not."""
        run = self._run
        return rule_of(self._settings, configs=len(run.configs), float32=float32, experts=run.facts.experts)

    def scorer(self) -> AsyncClient | None:
        """A live baseline, where there is one already: one that runs beside, or that somebody else runs."""
        run = self._run
        if run.is_up(BASELINE) or self._settings.baseline_url:
            return run.async_client(run.get(BASELINE))
        return None

    def _verify(self, config: Config) -> Verdict:
        run = self._run
        server, floor, rule = self.judged_by(config)
        client = run.async_client(server)
        prompts = self.prompts(config)
        run.progress(
            f"{config.id}: verifying {len(prompts)} answers, serial and at concurrency {self.concurrency}"
        )
        if config in self._failed_ahead:
            raise self._failed_ahead[config]
        judged: list[JudgedAnswer] = []
        level: Level = "self"
        for asked in (self._alone(prompts), prompts):
            records = self._together(config) if asked is prompts else self._one_by_one(config, asked)
            self.keep(config, asked, records)
            scorer = self.scorer()
            if scorer is not None:
                level = "full"
                scoring = teacher_force(
                    scorer,
                    asked,
                    records,
                    baseline=self.baseline.answers,
                    concurrency=self.concurrency,
                    known=self.scores,
                )
                judged += run.await_(scoring)
            elif self.has_answers:
                level = "first-divergence"
                judged += first_divergence(asked, records, self.baseline.answers)
            else:
                judged += self._by_itself(config, client, asked, records)
        return self._note(config, conclude(judged, floor, rule, config=config.id, level=level))

    def _collect(
        self, config: Config, client: AsyncClient, asked: Sequence[Prompt], *, output: int, concurrency: int
    ) -> dict[str, Record]:
        known = self.known_of(config) if concurrency == 1 else {}
        # What a clause of the contract asked alone is not asked again, nor the other way round.
        missing = [prompt for prompt in asked if (prompt.ids, output, True) not in known]
        collecting = collect(client, missing, output=output, concurrency=concurrency, ignore_eos=True)
        try:
            fresh = self._run.await_(collecting)
        except AnswerFailed as error:
            # A dead server explains more than a broken connection does.
            raise fault(self._run, config, error.record) or error from None
        if concurrency == 1:
            known.update({(prompt.ids, output, True): fresh[prompt.tag] for prompt in missing})
        return {prompt.tag: fresh.get(prompt.tag) or known[prompt.ids, output, True] for prompt in asked}

    def _by_itself(
        self, config: Config, client: AsyncClient, asked: Sequence[Prompt], records: dict[str, Record]
    ) -> list[JudgedAnswer]:
        try:
            return self._run.await_(
                self_consistency(
                    client, asked, records, concurrency=self.concurrency, known=self.prefilled(config)
                )
            )
        except SelfLevelUnavailable as error:
            raise NotVerified(f"{config.id}: {error}") from None

    def _note(self, config: Config, verdict: Verdict) -> Verdict:
        run = self._run
        run.results.verdicts.setdefault(config.id, []).append(verdict)
        run.store("verdict", verdict=verdict.as_json())
        run.progress(f"{config.id}: {verdict.summary()}{self._worst(verdict)}")
        self._on_verified(config, verdict)
        return verdict

    def _worst(self, verdict: Verdict) -> str:
        """The worst token in words, where some token is not the judge's best."""
        if not verdict.worst:
            return ""
        worst = verdict.worst[0]
        decode = self._run.maker("code").decode
        emitted, best = decode([worst.score.token_id]), decode([worst.score.top[0][0]])
        return f"; worst token {emitted!r} where the judge has {best!r}, position {worst.position} of {worst.tag}"

    def keep(self, config: Config, prompts: Sequence[Prompt], records: dict[str, Record]) -> None:
        """Keep answers for the report of a corruption, and for level full where the baseline is not up now."""
        self._answers.setdefault(config, []).append((tuple(prompts), records))

    def known_of(self, config: Config) -> dict[AnswerKey, Record]:
        """What a config has answered alone, by what was asked: nothing is asked twice."""
        return self._known.setdefault(config, {})


def _judged(verdict: Verdict) -> Verdict:
    """The verdict. Raises NotVerified where it is `unknown`, which is an error and never a pass."""
    if verdict.kind == "unknown":
        raise NotVerified(f"{verdict.config}: unknown, which is no pass: {'; '.join(verdict.reasons)}")
    return verdict
