"""Sampled answers of one session: drawn while each server is up, judged by the baseline when it can be had."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from pytest_ddtree.client.client import AsyncClient
from pytest_ddtree.client.records import Record
from pytest_ddtree.errors import Infrastructure
from pytest_ddtree.exactness.levels import AnswerFailed, Prompt
from pytest_ddtree.exactness.rule import gap_limit
from pytest_ddtree.exactness.sampled import NULL_SEEDS, draw, judge_top_k, probe_logprobs, sample, samples_of
from pytest_ddtree.exactness.sampling import Outside, SamplingVerdict, judge_samples
from pytest_ddtree.grid import BASELINE, Config

if TYPE_CHECKING:
    from pytest_ddtree.run import Run

T = TypeVar("T")

TOP_K = 4
TOP_K_PROMPTS = 8
LEAST_TOKENS = 1152
"""Sampled tokens of each server at least: with fewer a coin that is used twice is missed."""


@dataclass(frozen=True, slots=True)
class Drawn:
    """Answers of one config: at temperature 1 without truncation, and with `top_k`."""

    plain: dict[str, Record]
    top_k: dict[str, Record]


class SamplingRefused(Infrastructure):
    """The server takes no sampled requests."""


class Sampled:
    """Draws from each server once."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._drawn: dict[Config, Drawn | Infrastructure] = {}

    def prepare(self, config: Config) -> None:
        """Draw from a server that is up, before another one takes its place. What goes wrong is kept for the test that asks."""
        if config not in self._drawn:
            self._drawn[config] = self._kept(lambda: self._draw(config))

    def verdict(self, config: Config) -> SamplingVerdict:
        """Whether a config's answers at temperature 1 are samples from the baseline.

        Raises:
            Infrastructure: they could not be drawn or judged.
        """
        run, settings = self._run, self._run.settings
        own, null, scorer = self._both(config)
        prompts = self._prompts()
        scale = run.await_(probe_logprobs(scorer, prompts[0]))
        width, seed = run.verifier.concurrency, settings.seed
        own_samples = run.await_(samples_of(scorer, prompts, own.plain, concurrency=width, seed=seed))
        judging = samples_of(scorer, prompts, null.plain, concurrency=width, seed=seed + 1, steps=False)
        verdict = judge_samples(own_samples, run.await_(judging), config=config.id, alpha=self._alpha)
        said = f"{verdict.kind}: {verdict.tokens} tokens, {len(verdict.tests)} tests"
        skipped = "".join(f"; not tested: {part}" for part in verdict.skipped)
        run.progress(f"{config.id}: sampled answers {said}; logprobs of the judge are {scale}{skipped}")
        run.store(
            "sampling",
            config=config.id,
            verdict=verdict.kind,
            tokens=verdict.tokens,
            tests=[[test.name, test.run, test.baseline, test.p] for test in verdict.tests],
            skipped=list(verdict.skipped),
            logprobs=scale,
        )
        return verdict

    def outside(self, config: Config) -> tuple[Outside, ...]:
        """Tokens that `top_k` should have made impossible, worst first. Raises Infrastructure."""
        run = self._run
        own, _, scorer = self._both(config)
        floor, rule = run.verifier.floor_and_rule()
        tokens = sum(record.completion_tokens for record in own.top_k.values())
        judging = judge_top_k(
            scorer,
            self._prompts()[:TOP_K_PROMPTS],
            own.top_k,
            top_k=TOP_K,
            tolerance=gap_limit(rule, floor, tokens),
            concurrency=run.verifier.concurrency,
        )
        found = run.await_(judging)
        run.store("top_k", config=config.id, tokens=tokens, outside=len(found))
        return found

    @property
    def _alpha(self) -> float:
        return self._run.settings.alpha / max(1, len(self._run.configs))

    def _both(self, config: Config) -> tuple[Drawn, Drawn, AsyncClient]:
        """What the config and the baseline drew, and a live baseline to judge it."""
        run = self._run
        for one in (BASELINE, config):
            if one not in self._drawn:
                run.get(one)
                self.prepare(one)
        own, null = self._drawn[config], self._drawn[BASELINE]
        for drawn in (own, null):
            if isinstance(drawn, Infrastructure):
                raise drawn
        assert isinstance(own, Drawn)
        assert isinstance(null, Drawn)
        scorer = run.verifier.scorer()
        return own, null, scorer or run.async_client(run.get(BASELINE, "rescore"))

    def _draw(self, config: Config) -> Drawn:
        run, settings = self._run, self._run.settings
        client = run.async_client(run.get(config))
        prompts = self._prompts()
        seed = settings.seed + (NULL_SEEDS if config == BASELINE else 0)
        width = run.verifier.concurrency
        run.progress(f"{config.id}: sampling {len(prompts)} answers at temperature 1")
        plain = run.await_(draw(client, prompts, output=self._output, concurrency=width, seed=seed))
        few = prompts[:TOP_K_PROMPTS]
        truncated: dict[str, Record] = {}
        if config.speculative:
            sampling = sample(client, few, output=self._output, concurrency=width, top_k=TOP_K, seed=seed)
            truncated = run.await_(sampling)
        # What comes next must not find these prompts in the cache.
        run.await_(client.flush_cache())
        return Drawn(plain, truncated)

    def _kept(self, make: Callable[[], Drawn]) -> Drawn | Infrastructure:
        try:
            return make()
        except AnswerFailed as error:
            if error.record.outcome == "rejected":
                return SamplingRefused(f"the server takes no sampled requests: {error}")
            return error
        except Infrastructure as error:
            return error

    def _prompts(self) -> Sequence[Prompt]:
        """The shorter half of the prompts, at least 12: what they cost is mostly their prefill."""
        prompts = sorted(self._run.verifier.prompts(), key=lambda prompt: len(prompt.ids))
        return prompts[: max(12, len(prompts) // 2)]

    @property
    def _output(self) -> int:
        return max(self._run.settings.exactness_output, -(-LEAST_TOKENS // len(self._prompts())))
