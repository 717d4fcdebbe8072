"""Bodies of /v1/completions and /v1/chat/completions, checked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..chat import ChatError, ChatTemplate
from ..sampling import SamplingParams
from .errors import RequestError
from .sampling_input import sampling_params
from .service import NO_LOGPROBS, Service

SHARED = {
    "temperature": "temperature", "top_p": "top_p", "top_k": "top_k", "min_p": "min_p",
    "frequency_penalty": "frequency_penalty", "presence_penalty": "presence_penalty",
    "repetition_penalty": "repetition_penalty", "logit_bias": "logit_bias", "stop": "stop",
    "stop_token_ids": "stop_token_ids", "ignore_eos": "ignore_eos", "min_tokens": "min_new_tokens",
    "skip_special_tokens": "skip_special_tokens", "no_stop_trim": "no_stop_trim", "seed": "sampling_seed", "n": "n",
    "json_schema": "json_schema", "regex": "regex", "ebnf": "ebnf",
}  # fmt: skip
HARMLESS = {
    "model", "user", "rid", "priority", "metadata", "store", "service_tier",
    "parallel_tool_calls", "reasoning_effort", "separate_reasoning", "chat_template_kwargs",
    "stream", "stream_options", "max_tokens", "max_completion_tokens", "logprobs", "top_logprobs", "echo", "prompt",
    "messages", "return_meta_info",
}  # fmt: skip
WITHOUT_EFFORT: dict[str, tuple[object, ...]] = {
    "best_of": (1,), "suffix": ("",), "stream_reasoning": (True,), "continue_final_message": (False,),
    "add_generation_prompt": (True,),
}  # fmt: skip
"""Parameters that would change the answer, with the values that change nothing: others are refused."""
DEFAULT_COMPLETION_TOKENS = 16


@dataclass(frozen=True, slots=True)
class OpenAIInput:
    """One or more prompts, each answered ``params.n`` times.

    top_logprobs is None when no log-probabilities are wanted. ``echo`` holds the prompts' texts when answers begin with
    them. ``parser`` splits thinking from the answer, None leaves the text whole.
    """

    prompts: list[list[int]]
    params: SamplingParams
    rid: str | None
    stream: bool
    include_usage: bool
    continuous_usage: bool
    top_logprobs: int | None
    echo: list[str] | None
    parser: str | None = None
    thinking_off: bool = False
    return_meta_info: bool = False


def _sampling(body: Mapping[str, Any], max_tokens: int, service: Service) -> SamplingParams:
    raw = {theirs: body[ours] for ours, theirs in SHARED.items() if body.get(ours) is not None}
    return sampling_params(raw | {"max_new_tokens": max_tokens}, service.vocab_size)


def _check_keys(body: Mapping[str, Any]) -> None:
    for key, value in body.items():
        if key in SHARED or key in HARMLESS:
            continue
        if key in ("tools", "tool_choice", "response_format", "functions", "function_call"):
            if value in (None, [], "none", "auto") or (
                isinstance(value, dict) and value.get("type") == "text"
            ):
                continue
            raise RequestError(f"{key} is not supported by this server.")
        if key not in WITHOUT_EFFORT:
            raise RequestError(f"Unknown parameter {key!r}.")
        if value is not None and value not in WITHOUT_EFFORT[key]:
            raise RequestError(f"{key}={value!r} is not supported by this server.")


def _bool(body: Mapping[str, Any], key: str, *, default: bool = False) -> bool:
    value = body.get(key)
    if value is None:
        return default
    if not isinstance(value, bool):
        raise RequestError(f"{key} must be true or false, got {value!r}.")
    return value


def _stream_options(body: Mapping[str, Any]) -> tuple[bool, bool]:
    options = body.get("stream_options")
    if options is None:
        return False, False
    if not isinstance(options, dict):
        raise RequestError(f"stream_options must be an object, got {options!r}.")
    continuous = _bool(options, "continuous_usage_stats")
    return _bool(options, "include_usage"), continuous


def _tokens(body: Mapping[str, Any], key: str) -> int | None:
    value = body.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise RequestError(f"{key} must be a positive integer, got {value!r}.")
    return value


def _refuse_logprobs(service: Service, top: int | None) -> int | None:
    if top is not None and service.speculative:
        raise RequestError(NO_LOGPROBS)
    return top


def parse_completion(body: Mapping[str, Any], service: Service) -> OpenAIInput:
    """Check a /v1/completions body.

    Raises:
        RequestError: what cannot be served.
    """
    _check_keys(body)
    prompt = body.get("prompt")
    prompts, texts = _prompts(prompt, service)
    params = _sampling(body, _tokens(body, "max_tokens") or DEFAULT_COMPLETION_TOKENS, service)
    for ids in prompts:
        service.check_ids(ids)
        params = service.fit(len(ids), params)
    logprobs = body.get("logprobs")
    if logprobs is not None and (isinstance(logprobs, bool) or not isinstance(logprobs, int) or logprobs < 0):
        raise RequestError(f"logprobs must be a non-negative integer, got {logprobs!r}.")
    echo: list[str] | None = None
    if _bool(body, "echo"):
        echo = texts or [service.tokenizer.decode(ids) for ids in prompts]
    usage, continuous = _stream_options(body)
    return OpenAIInput(
        prompts=prompts,
        params=params,
        rid=_rid(body),
        stream=_bool(body, "stream"),
        include_usage=usage,
        continuous_usage=continuous,
        top_logprobs=_refuse_logprobs(service, logprobs),
        echo=echo,
        return_meta_info=_bool(body, "return_meta_info"),
    )


def _rid(body: Mapping[str, Any]) -> str | None:
    rid = body.get("rid")
    if rid is not None and not isinstance(rid, str):
        raise RequestError(f"rid must be a string, got {rid!r}.")
    return rid


def _prompts(prompt: Any, service: Service) -> tuple[list[list[int]], list[str] | None]:
    """Ids of every prompt, and the texts they came as, None when they came as ids."""
    encode = service.tokenizer.encode
    if isinstance(prompt, str):
        return [encode(prompt)], [prompt]
    if isinstance(prompt, list) and prompt:
        if all(isinstance(item, str) for item in prompt):
            return [encode(item) for item in prompt], prompt
        if all(isinstance(item, int) and not isinstance(item, bool) for item in prompt):
            return [prompt], None
        if all(isinstance(item, list) and all(type(token) is int for token in item) for item in prompt):
            return prompt, None
    raise RequestError(
        "prompt must be a string, a list of strings, a list of token ids or a list of such lists."
    )


def parse_chat(body: Mapping[str, Any], service: Service, template: ChatTemplate | None) -> OpenAIInput:
    """Check a /v1/chat/completions body and render its messages.

    Raises:
        RequestError: what cannot be served.
    """
    _check_keys(body)
    if template is None:
        raise RequestError("The checkpoint has no chat template.")
    options = body.get("chat_template_kwargs") or {}
    if not isinstance(options, dict):
        raise RequestError(f"chat_template_kwargs must be an object, got {options!r}.")
    try:
        text = template.render(_messages(body.get("messages")), options)
    except ChatError as error:
        raise RequestError(str(error)) from None
    ids = service.tokenizer.encode(text)
    service.check_ids(ids)
    wanted = _tokens(body, "max_completion_tokens") or _tokens(body, "max_tokens")
    room = service.settings.context_length - len(ids)
    params = service.fit(len(ids), _sampling(body, wanted or max(room, 1), service))
    top: int | None = None
    if _bool(body, "logprobs"):
        top = body.get("top_logprobs") or 0
        if isinstance(top, bool) or not isinstance(top, int) or top < 0:
            raise RequestError(f"top_logprobs must be a non-negative integer, got {top!r}.")
    usage, continuous = _stream_options(body)
    parser = service.args.reasoning_parser if _bool(body, "separate_reasoning", default=True) else None
    return OpenAIInput(
        prompts=[ids],
        params=params,
        rid=_rid(body),
        stream=_bool(body, "stream"),
        include_usage=usage,
        continuous_usage=continuous,
        top_logprobs=_refuse_logprobs(service, top),
        echo=None,
        parser=parser,
        thinking_off=options.get("enable_thinking") is False,
        return_meta_info=_bool(body, "return_meta_info"),
    )


def _messages(raw: Any) -> list[dict[str, Any]]:
    if not isinstance(raw, list) or not raw:
        raise RequestError("messages must be a non-empty list.")
    messages: list[dict[str, Any]] = []
    for message in raw:
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise RequestError("Every message must be an object with a role.")
        content = message.get("content")
        if isinstance(content, list):
            parts = [part.get("text") if isinstance(part, dict) else None for part in content]
            if not all(isinstance(part, str) for part in parts):
                raise RequestError("Message parts must be text: this server reads nothing else.")
            content = "".join(str(part) for part in parts)
        if content is not None and not isinstance(content, str):
            raise RequestError(f"A message's content must be text, got {content!r}.")
        messages.append(dict(message) | {"content": content or ""})
    return messages
