"""One request on its way through the engine."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from .arrays import I64
from .hooks import Hooks
from .memory import Holding
from .sampling import SamplingParams
from .stops import Finish, StopChecker

Logprob = tuple[float | None, int]
"""(log-probability, token id); None for the first scored prompt token, which nothing precedes."""


@dataclass(frozen=True, slots=True)
class LogprobOptions:
    """Which log-probabilities to return. ``start``: first prompt position scored, its own value is None."""

    start: int
    top: int = 0
    token_ids: tuple[int, ...] = ()


@dataclass(slots=True)
class LogprobResult:
    """Log-probabilities of prompt and answer tokens and, per position, of the top and of the asked tokens."""

    input_tokens: list[Logprob] = field(default_factory=list)
    input_top: list[list[Logprob] | None] = field(default_factory=list)
    input_ids: list[list[Logprob] | None] = field(default_factory=list)
    output_tokens: list[Logprob] = field(default_factory=list)
    output_top: list[list[Logprob] | None] = field(default_factory=list)
    output_ids: list[list[Logprob] | None] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Submission:
    """What the HTTP side hands to the engine."""

    rid: str
    input_ids: I64
    params: SamplingParams
    seed: int
    logprobs: LogprobOptions | None = None
    every: int = 1
    """Send an update at least every so many tokens; 0: only at the end."""


@dataclass(frozen=True, slots=True)
class Update:
    """News of one request. Token lists are those since the last update; counts are totals."""

    tokens: tuple[int, ...]
    completion_tokens: int
    cached_tokens: int
    retractions: int
    finish: Finish | None
    logprobs: LogprobResult | None
    verify_steps: int
    accepted_histogram: tuple[int, ...]
    queue_seconds: float
    first_token_at: float


class Request:
    """Mutable state; only the engine thread touches it."""

    __slots__ = (
        "accepted_histogram",
        "admitted_at",
        "arrived_at",
        "cached_tokens",
        "checker",
        "counts",
        "deliver",
        "finish",
        "first_token_at",
        "holding",
        "kv_length",
        "logprobs",
        "number",
        "output",
        "prompt",
        "reported",
        "retractions",
        "seen",
        "submission",
        "verify_steps",
    )

    def __init__(
        self,
        submission: Submission,
        checker: StopChecker,
        deliver: Callable[[Update], None],
        number: int,
    ) -> None:
        self.submission = submission
        self.checker = checker
        self.deliver = deliver
        self.number = number
        self.prompt = submission.input_ids
        self.output: list[int] = []
        self.counts: dict[int, int] = {}
        self.seen: set[int] | None = None
        if submission.params.repetition_penalty != 1.0:
            self.seen = set(self.prompt.tolist())
        self.holding: Holding | None = None
        self.kv_length = 0
        self.finish: Finish | None = None
        self.cached_tokens = 0
        self.retractions = 0
        self.reported = 0
        self.verify_steps = 0
        self.accepted_histogram: list[int] = []
        self.logprobs = LogprobResult() if submission.logprobs is not None else None
        self.arrived_at = time.perf_counter()
        self.admitted_at: float | None = None
        self.first_token_at: float = 0.0

    @property
    def params(self) -> SamplingParams:
        return self.submission.params

    @property
    def length(self) -> int:
        """Tokens known: prompt and answer so far."""
        return len(self.prompt) + len(self.output)

    def fill_length(self) -> int:
        """Positions that must be processed before decoding: all but the last answer token, the whole prompt first."""
        return self.length - 1 if self.output else len(self.prompt)

    def tokens(self, begin: int, end: int) -> I64:
        """Known tokens of the positions begin .. end - 1."""
        size = len(self.prompt)
        if end <= size:
            return self.prompt[begin:end]
        tail = np.asarray(self.output[max(begin - size, 0) : end - size], dtype=np.int64)
        return tail if begin >= size else np.concatenate([self.prompt[begin:], tail])

    def table(self) -> Holding:
        if self.holding is None:
            raise RuntimeError(f"request {self.submission.rid} holds no memory")
        return self.holding

    def emit(self, tokens: Sequence[int], hooks: Hooks) -> int:
        """Add a step's tokens up to the one that ends the answer; returns how many were taken."""
        edits = self.params.edits_logits
        for index, token in enumerate(tokens):
            self.output.append(token)
            if edits:
                self.counts[token] = self.counts.get(token, 0) + 1
                if self.seen is not None:
                    self.seen.add(token)
            self.finish = self.checker.push(token)
            if self.finish is not None:
                kept = hooks.leftover(index + 1, tokens, self)
                self.output.extend(tokens[index + 1 : kept])
                return kept
        return len(tokens)

    def report(self, hooks: Hooks) -> None:
        """Deliver an update when one is due."""
        fresh = len(self.output) - self.reported
        every = self.submission.every
        if self.finish is None and (every == 0 or fresh < every):
            return
        logprobs = self.logprobs
        if logprobs is not None:
            self.logprobs = LogprobResult()
        tokens = tuple(self.output[self.reported :])
        self.reported = len(self.output)
        update = Update(
            tokens=tokens,
            completion_tokens=len(self.output),
            cached_tokens=self.cached_tokens,
            retractions=self.retractions,
            finish=self.finish,
            logprobs=logprobs,
            verify_steps=self.verify_steps,
            accepted_histogram=tuple(self.accepted_histogram),
            queue_seconds=(self.admitted_at or self.arrived_at) - self.arrived_at,
            first_token_at=self.first_token_at,
        )
        for one in hooks.updates([update], self):
            self.deliver(one)
