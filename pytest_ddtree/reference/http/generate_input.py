"""The body of /generate, checked and spread into single generations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..request import LogprobOptions
from ..sampling import SamplingParams
from .errors import RequestError
from .sampling_input import sampling_params
from .service import NO_LOGPROBS, Service

KNOWN_KEYS = frozenset(
    {
        "text", "input_ids", "sampling_params", "rid", "stream", "return_logprob", "logprob_start_len",
        "top_logprobs_num", "token_ids_logprob", "return_text_in_logprobs", "log_metrics", "background",
        "priority", "extra_key", "return_hidden_states", "session_params", "lora_path", "image_data", "video_data",
        "audio_data", "modalities", "custom_logit_processor", "input_embeds", "data_parallel_rank", "no_logs",
        "return_bytes", "conversation_id",
    }
)  # fmt: skip
UNSUPPORTED_KEYS = (
    "return_hidden_states", "session_params", "lora_path", "image_data", "video_data", "audio_data",
    "custom_logit_processor", "input_embeds",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Generation:
    """One answer to produce."""

    input_ids: list[int]
    params: SamplingParams
    rid: str | None
    index: int
    sample: int
    logprobs: LogprobOptions | None
    text_in_logprobs: bool


@dataclass(frozen=True, slots=True)
class GenerateInput:
    """``single`` is true when the answer is one object rather than a list."""

    generations: list[Generation]
    stream: bool
    single: bool


def parse_generate(body: Mapping[str, Any], service: Service) -> GenerateInput:
    """Check a /generate body.

    Raises:
        RequestError: anything SGLang would refuse, and every key this server does not know.
    """
    for key in body:
        if key not in KNOWN_KEYS:
            raise RequestError(f"Unknown parameter {key!r}.")
    for key in UNSUPPORTED_KEYS:
        if body.get(key):
            raise RequestError(f"{key} is not supported by this server.")
    prompts, single = _prompts(body, service)
    count = len(prompts)
    stream = _flag(body, "stream")
    rids = _per_prompt(body.get("rid"), count, single, "rid", str)
    all_params = _per_prompt(body.get("sampling_params"), count, single, "sampling_params", dict)
    with_logprobs = _per_prompt(body.get("return_logprob"), count, single, "return_logprob", bool)
    if any(with_logprobs) and service.speculative:
        raise RequestError(NO_LOGPROBS)
    starts = _per_prompt(body.get("logprob_start_len"), count, single, "logprob_start_len", int)
    tops = _per_prompt(body.get("top_logprobs_num"), count, single, "top_logprobs_num", int)
    token_ids = body.get("token_ids_logprob")
    texts = _flag(body, "return_text_in_logprobs")
    generations: list[Generation] = []
    spread = False
    for index, ids in enumerate(prompts):
        service.check_ids(ids)
        asked = service.engine.runtime.hooks.asked(all_params[index] or {})
        params = service.fit(len(ids), sampling_params(asked, service.vocab_size))
        options = None
        if with_logprobs[index]:
            options = _logprob_options(len(ids), starts[index], tops[index], token_ids, service.vocab_size)
        spread = spread or params.n > 1
        for sample in range(params.n):
            rid = rids[index] if params.n == 1 or rids[index] is None else f"{rids[index]}_{sample}"
            generations.append(Generation(ids, params, rid, len(generations), sample, options, texts))
    return GenerateInput(generations, stream, single and not spread)


def _prompts(body: Mapping[str, Any], service: Service) -> tuple[list[list[int]], bool]:
    text, ids = body.get("text"), body.get("input_ids")
    if (text is None) == (ids is None):
        raise RequestError("Either text or input_ids must be given, and not both.")
    if text is not None:
        if isinstance(text, str):
            return [service.tokenizer.encode(text)], True
        if isinstance(text, list) and text and all(isinstance(item, str) for item in text):
            return [service.tokenizer.encode(item) for item in text], False
        raise RequestError("text must be a string or a non-empty list of strings.")
    if isinstance(ids, list) and ids:
        if all(_is_id(item) for item in ids):
            return [ids], True
        if all(isinstance(item, list) and all(_is_id(token) for token in item) for item in ids):
            return ids, False
    raise RequestError("input_ids must be a non-empty list of integers or a list of such lists.")


def _is_id(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _flag(body: Mapping[str, Any], key: str) -> bool:
    value = body.get(key)
    if value is None:
        return False
    if not isinstance(value, bool):
        raise RequestError(f"{key} must be true or false, got {value!r}.")
    return value


def _per_prompt(value: Any, count: int, single: bool, key: str, kind: type) -> list[Any]:
    """One value per prompt: a scalar serves all, a list must have one entry each."""
    if value is None:
        return [None] * count
    if isinstance(value, list):
        if single or len(value) != count:
            raise RequestError(f"{key} is a list of {len(value)}; there are {count} prompts.")
        values = value
    else:
        if kind is str and not single:
            raise RequestError(f"{key} must be a list with one entry per prompt.")
        values = [value] * count
    for item in values:
        wrong = not isinstance(item, kind) or (kind is int and isinstance(item, bool))
        if wrong and item is not None:
            raise RequestError(f"{key} must be of type {kind.__name__}, got {item!r}.")
    return values


def _logprob_options(
    length: int, start: int | None, top: int | None, ids: Any, vocab_size: int
) -> LogprobOptions:
    start = -1 if start is None else start
    if start == -1:
        start = length - 1
    if not 0 <= start < length:
        raise RequestError(f"logprob_start_len must be -1 or in [0, {length - 1}], got {start}.")
    top = top or 0
    if not 0 <= top <= vocab_size:
        raise RequestError(f"top_logprobs_num must be in [0, {vocab_size}], got {top}.")
    if ids is None:
        return LogprobOptions(start, top)
    if not isinstance(ids, list) or not all(_is_id(token) and 0 <= token < vocab_size for token in ids):
        raise RequestError(f"token_ids_logprob must be a list of token ids below {vocab_size}.")
    return LogprobOptions(start, top, tuple(ids))
