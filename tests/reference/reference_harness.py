"""An engine without HTTP for tests: submit prompts, wait, compare."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from pytest_ddtree.reference.blas import set_blas_threads
from pytest_ddtree.reference.checkpoint import load_draft, load_target
from pytest_ddtree.reference.engine import Engine
from pytest_ddtree.reference.hooks import Hooks
from pytest_ddtree.reference.request import LogprobOptions, LogprobResult, Submission, Update
from pytest_ddtree.reference.runtime import Runtime, build_runtime
from pytest_ddtree.reference.sampling import SamplingParams
from pytest_ddtree.reference.settings import EngineSettings, SpeculativeSettings
from pytest_ddtree.reference.tokenizer import Tokenizer

CHAIN = SpeculativeSettings("DFLASH", 8, 7, 1, None)
GREEDY = SamplingParams(max_new_tokens=24, temperature=0.0, ignore_eos=True)
WAIT_S = 120.0


def tree(budget: int, topk: int = 4, window: int | None = None) -> SpeculativeSettings:
    return SpeculativeSettings("DDTREE", 8, budget, topk, window)


@dataclass
class Answer:
    """All updates of one request and what they add up to."""

    updates: list[Update]

    @property
    def tokens(self) -> list[int]:
        return [token for update in self.updates for token in update.tokens]

    @property
    def last(self) -> Update:
        return self.updates[-1]

    @property
    def logprobs(self) -> LogprobResult:
        whole = LogprobResult()
        for update in self.updates:
            if update.logprobs is not None:
                for name in ("input_tokens", "input_top", "output_tokens", "output_top"):
                    getattr(whole, name).extend(getattr(update.logprobs, name))
        return whole


class Harness:
    def __init__(self, engine: Engine, crashes: list[BaseException]) -> None:
        self.engine = engine
        self.crashes = crashes

    @property
    def runtime(self) -> Runtime:
        return self.engine.runtime

    def run(
        self,
        prompts: Sequence[Sequence[int]],
        params: SamplingParams | Sequence[SamplingParams] = GREEDY,
        *,
        concurrency: int = 1,
        logprobs: LogprobOptions | None = None,
        every: int = 1,
    ) -> list[Answer]:
        """Answers in the prompts' order; the seed of prompt i is i unless its parameters hold one."""
        answers = [Answer([]) for _ in prompts]
        gate, done = threading.Semaphore(concurrency), threading.Semaphore(0)
        for index, prompt in enumerate(prompts):
            assert gate.acquire(timeout=WAIT_S), "the engine does not answer"
            one = params if isinstance(params, SamplingParams) else params[index]

            def deliver(update: Update, answer: Answer = answers[index]) -> None:
                answer.updates.append(update)
                if update.finish is not None:
                    gate.release()
                    done.release()

            seed = one.seed if one.seed is not None else index
            ids = np.asarray(prompt, dtype=np.int64)
            self.engine.submit(Submission(f"{index}-", ids, one, seed, logprobs, every), deliver)
        for _ in prompts:
            assert done.acquire(timeout=WAIT_S), "the engine does not answer"
        return answers

    def tokens(
        self, prompts: Sequence[Sequence[int]], params: Any = GREEDY, *, concurrency: int = 1
    ) -> list[list[int]]:
        return [answer.tokens for answer in self.run(prompts, params, concurrency=concurrency)]

    def flush(self) -> bool:
        done, result = threading.Event(), []

        def finished(flushed: bool) -> None:
            result.append(flushed)
            done.set()

        self.engine.flush_cache(finished)
        assert done.wait(WAIT_S)
        return result[0]

    def check_idle(self) -> None:
        """No page is lost and the books balance once nothing runs."""
        assert self.flush()
        memory = self.runtime.memory
        memory.pages.check()
        assert memory.used == 0
        assert memory.cache.held == 0
        assert memory.free == memory.total


SETTINGS = EngineSettings(
    context_length=1024,
    max_total_tokens=8192,
    page_size=1,
    max_running_requests=32,
    max_queued_requests=None,
    chunked_prefill_size=256,
    prefix_cache=True,
    random_seed=0,
    numerics="f32",
    speculative=None,
    decode_log_interval=40,
)


# Many engines of one test run share what they read.
_target, _draft = cache(load_target), cache(load_draft)


@contextmanager
def harness(
    weights: tuple[Path, Path],
    speculative: SpeculativeSettings | None = None,
    hooks: Hooks | None = None,
    **changes: Any,
) -> Iterator[Harness]:
    set_blas_threads(1)
    settings = replace(SETTINGS, speculative=speculative, **changes)
    target, draft = weights
    checkpoint = _draft(draft) if speculative is not None else None
    runtime = build_runtime(settings, _target(target), checkpoint, hooks or Hooks())
    crashes: list[BaseException] = []
    engine = Engine(runtime, Tokenizer(target), on_crash=crashes.append)
    engine.start()
    try:
        yield Harness(engine, crashes)
    finally:
        engine.stop()


def random_prompts(count: int, *, low: int, high: int, vocab: int, seed: int = 0) -> list[list[int]]:
    rng = np.random.default_rng(seed)
    return [rng.integers(6, vocab, size=int(rng.integers(low, high))).tolist() for _ in range(count)]
