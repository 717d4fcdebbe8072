"""Values that a client hands on: what was asked, what came back and when, scores of given tokens."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, TypeGuard

Outcome = Literal[
    "ok",  # finished with `stop` or `length`, every token accounted for
    "empty",  # finished, but without a single token
    "short",  # fewer tokens than asked for, although it claims its length limit or was to ignore EOS
    "aborted",  # finish_reason abort
    "rejected",  # an HTTP status other than 200
    "error_event",  # an `error` event inside a 200 stream
    "malformed",  # bytes that are no SSE, no HTTP or no JSON
    "cut",  # the stream ended without a finish reason
    "reset",  # the connection was refused, reset or closed
    "timeout",  # the deadline of the request passed
]
"""How a request ended. Only `ok` may enter a measurement or count as an answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """Sampling parameters with SGLang's names; None means: not sent, the server's default holds."""

    max_new_tokens: int
    temperature: float = 0.0
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: int | None = None
    ignore_eos: bool = False
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    extra: Mapping[str, Any] = field(default_factory=dict)
    """Further parameters, sent as they are (penalties, logit_bias, min_new_tokens, ...)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One request: the prompt as token ids (exact length) or as text, and how to sample."""

    sampling: Sampling
    input_ids: tuple[int, ...] | None = None
    text: str | None = None
    rid: str | None = None
    tag: str = ""
    """A name for people: which prompt this is."""


class Chunk(NamedTuple):
    """One event of a stream that carried tokens: arrival (ns, `perf_counter_ns`), tokens so far.

    A tuple, unlike the other values here: there is one for every event, and a frozen dataclass takes twice as long to make.
    """

    at_ns: int
    tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """What a server answered to one request. Times are ns on the clock of `time.perf_counter_ns`."""

    request: Request
    outcome: Outcome
    sent_ns: int
    end_ns: int
    output_ids: tuple[int, ...] = ()
    text: str = ""
    reasoning: str | None = None
    chunks: tuple[Chunk, ...] = ()
    exact_counts: bool = True
    """Whether the server said the token counts of `chunks`; False means estimated, which gates refuse."""
    finish_reason: Mapping[str, Any] | None = None
    meta: Mapping[str, Any] = field(default_factory=dict)
    """`meta_info` of the last event, or `usage` of an OpenAI endpoint, as the server sent it."""
    http_status: int | None = None
    error: str | None = None
    """Why the outcome is not `ok`, in words for people, with what the server said."""
    coalesced: int = 0
    """Reads that held more than one event: equal arrivals of what the server may have sent one by one."""

    @property
    def ok(self) -> bool:
        return self.outcome == "ok"

    @property
    def prompt_tokens(self) -> int | None:
        value = self.meta.get("prompt_tokens")
        return value if isinstance(value, int) else None

    @property
    def completion_tokens(self) -> int:
        """Tokens of the answer: the server's count, else the ids that came, else the last chunk's count."""
        value = self.meta.get("completion_tokens")
        if isinstance(value, int):
            return value
        return len(self.output_ids) or (self.chunks[-1].tokens if self.chunks else 0)

    @property
    def cached_tokens(self) -> int | None:
        value = self.meta.get("cached_tokens")
        return value if isinstance(value, int) else None

    @property
    def verify_steps(self) -> int | None:
        """Verify steps of this request (`spec_verify_ct`); None where the server does not say, and for what is no count."""
        value = self.meta.get("spec_verify_ct")
        return value if _is_count(value) and value > 0 else None

    @property
    def malformed_steps(self) -> str | None:
        """What the server says in place of a number of verify steps, as it came; None where it says a number or nothing."""
        value = self.meta.get("spec_verify_ct")
        return None if value is None or _is_count(value) else repr(value)

    @property
    def accept_length(self) -> float | None:
        """Tokens per verify step, the bonus included: completion_tokens / spec_verify_ct."""
        steps = self.verify_steps
        return None if steps is None else self.completion_tokens / steps

    @property
    def first_ns(self) -> int | None:
        """Arrival of the first tokens."""
        return self.chunks[0].at_ns if self.chunks else None

    @property
    def ttft_s(self) -> float | None:
        """Seconds from sending to the first tokens."""
        return (self.chunks[0].at_ns - self.sent_ns) / 1e9 if self.chunks else None

    @property
    def latency_s(self) -> float:
        """Seconds from sending to the last token (to the end of the request where no token came)."""
        last = self.chunks[-1].at_ns if self.chunks else self.end_ns
        return (last - self.sent_ns) / 1e9

    @property
    def time_per_token_s(self) -> float | None:
        """Seconds per token after the first chunk: (last - first arrival) / (tokens - first chunk's tokens).

        Dividing by tokens - 1 instead understates it by (n - k) / (n - 1) when the first chunk holds k.
        """
        if len(self.chunks) < 2:
            return None
        tokens = self.chunks[-1].tokens - self.chunks[0].tokens
        return (self.chunks[-1].at_ns - self.chunks[0].at_ns) / 1e9 / tokens if tokens > 0 else None


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenScore:
    """What a server thinks of one given token, after the tokens before it. Log-probabilities in nats."""

    position: int
    """Index in the whole sequence of ids."""
    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...]
    """(token id, logprob) of the most probable tokens, best first."""

    @property
    def gap(self) -> float:
        """logprob(argmax) - logprob(token) >= 0; 0 with another id first is a tie of logits."""
        return max(0.0, self.top[0][1] - self.logprob)

    @property
    def is_argmax(self) -> bool:
        return self.top[0][0] == self.token_id


def _is_count(value: Any) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
