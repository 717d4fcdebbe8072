"""The growing answer to one generation, in the shape of SGLang's /generate."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from ..hooks import Hooks
from ..request import LogprobResult, Update
from ..sampling import SamplingParams
from ..settings import SpeculativeSettings
from ..stops import Finish, visible_text
from ..tokenizer import Detokenizer, Tokenizer

TextOf = Callable[[int], str | None]


class AnswerText:
    """Text of the ids received so far, cut at stop strings, incomplete characters and stop prefixes held back."""

    def __init__(self, tokenizer: Tokenizer, params: SamplingParams) -> None:
        self._tokenizer = tokenizer
        self._params = params
        self._detokenizer = Detokenizer(tokenizer, skip_special_tokens=params.skip_special_tokens)
        self.text = ""

    def push(self, ids: Sequence[int], finish: Finish | None) -> str:
        """Add ids; returns the text that may be shown in addition. ``text`` is all that may be shown."""
        trim = not self._params.no_stop_trim
        if finish is not None and finish.kind == "stop" and isinstance(finish.matched, int) and trim:
            ids = ids[:-1]
        if ids:
            self._detokenizer.push(ids)
        if finish is not None:
            self._detokenizer.finish()
        full = self._detokenizer.text
        if self._params.stop:
            full = visible_text(full, self._params.stop, finish, trim=trim)
        fresh = full[len(self.text) :]
        self.text = full
        return fresh


class Answer:
    """Turns updates into response objects."""

    def __init__(
        self,
        rid: str,
        prompt_tokens: int,
        params: SamplingParams,
        tokenizer: Tokenizer,
        speculative: SpeculativeSettings | None,
        *,
        incremental: bool,
        hooks: Hooks,
        with_logprobs: bool,
        text_in_logprobs: bool,
        received_at: float,
    ) -> None:
        self.rid = rid
        self._prompt_tokens = prompt_tokens
        self._speculative = speculative
        self._incremental = incremental
        self._text = AnswerText(tokenizer, params)
        self._ids: list[int] = []
        self._logprobs = LogprobResult() if with_logprobs else None
        self._text_of: TextOf = tokenizer.token_text if text_in_logprobs else _no_text
        self._received_at = received_at
        self._dispatched_at = time.time()
        self._first_at: float | None = None
        self._hooks = hooks
        self._sent = 0

    def payload(self, update: Update) -> dict[str, Any]:
        """The response object after this update: cumulative, or only what is new when incremental."""
        fresh = self._text.push(update.tokens, update.finish)
        self._ids.extend(update.tokens)
        now = time.time()
        opening = self._first_at is None
        if opening:
            self._first_at = now
        meta: dict[str, Any] = {
            "id": self.rid,
            "finish_reason": update.finish.as_meta(update.completion_tokens) if update.finish else None,
            "prompt_tokens": self._prompt_tokens,
            "weight_version": "default",
            "num_retractions": update.retractions,
            "queue_time": round(update.queue_seconds, 6),
            "reasoning_tokens": 0,
            "completion_tokens": update.completion_tokens,
            "cached_tokens": update.cached_tokens,
            "cached_tokens_details": {"device": update.cached_tokens, "host": 0},
            "dp_rank": None,
        }
        if self._logprobs is not None and update.logprobs is not None:
            _extend(self._logprobs, update.logprobs)
            meta |= logprob_meta(update.logprobs if self._incremental else self._logprobs, self._text_of)
        if opening or update.finish is not None:
            meta["response_sent_to_client_ts"] = self._first_at
        if update.finish is not None:
            meta |= self._closing(update, now)
        if self._incremental:
            payload = {"text": fresh, "output_ids": list(update.tokens), "meta_info": meta}
        else:
            payload = {"text": self._text.text, "output_ids": self._ids, "meta_info": meta}
        self._sent += 1
        return self._hooks.event(payload, self._sent - 1)

    def _closing(self, update: Update, now: float) -> dict[str, Any]:
        elapsed = max(now - self._received_at, 1e-9)
        meta: dict[str, Any] = {"e2e_latency": elapsed}
        if update.verify_steps and self._speculative is not None:
            meta |= speculation_meta(update, self._speculative.block_size)
        return meta | {
            "request_received_ts": self._received_at,
            "api_server_dispatch_finish_ts": self._dispatched_at,
            "request_finished_ts": now,
            "decode_throughput": throughput(update, time.perf_counter()),
        }


def throughput(update: Update, now: float) -> float:
    """Tokens behind the first over the seconds since it, by the engine's clock; 0 where there are none."""
    if update.completion_tokens < 2 or not update.first_token_at:
        return 0.0
    return (update.completion_tokens - 1) / max(now - update.first_token_at, 1e-9)


def speculation_meta(update: Update, draft_tokens: int) -> dict[str, Any]:
    """Keys of the last chunk about speculation; the old and the new names, as builds in between have both."""
    steps = update.verify_steps
    histogram = list(update.accepted_histogram)
    correct = sum(accepted * times for accepted, times in enumerate(histogram))
    proposed = steps * (draft_tokens - 1)
    return {
        "spec_accept_rate": correct / proposed if proposed else 0.0,
        "spec_accept_length": update.completion_tokens / steps,
        "spec_num_correct_drafts": correct,
        "spec_num_proposed_drafts": proposed,
        "spec_verify_ct": steps,
        "spec_accepted_drafts": correct,
        "spec_proposed_drafts": proposed,
        "spec_correct_drafts_histogram": histogram,
        "spec_accept_histogram": histogram,
    }


def logprob_meta(result: LogprobResult, text_of: TextOf) -> dict[str, Any]:
    """``meta_info`` keys: [logprob, token id, text or None] triples, per position lists of them for the top."""

    def triples(entries: Sequence[tuple[float | None, int]]) -> list[list[Any]]:
        return [[value, token, text_of(token)] for value, token in entries]

    def nested(rows: Sequence[Sequence[tuple[float | None, int]] | None]) -> list[list[list[Any]] | None]:
        return [None if row is None else triples(row) for row in rows]

    meta: dict[str, Any] = {
        "input_token_logprobs": triples(result.input_tokens),
        "output_token_logprobs": triples(result.output_tokens),
    }
    if result.input_top or result.output_top:
        meta |= {
            "input_top_logprobs": nested(result.input_top),
            "output_top_logprobs": nested(result.output_top),
        }
    if result.input_ids or result.output_ids:
        meta |= {
            "input_token_ids_logprobs": nested(result.input_ids),
            "output_token_ids_logprobs": nested(result.output_ids),
        }
    return meta


def _extend(whole: LogprobResult, part: LogprobResult) -> None:
    whole.input_tokens.extend(part.input_tokens)
    whole.input_top.extend(part.input_top)
    whole.input_ids.extend(part.input_ids)
    whole.output_tokens.extend(part.output_tokens)
    whole.output_top.extend(part.output_top)
    whole.output_ids.extend(part.output_ids)


def _no_text(_: int) -> None:
    return None
