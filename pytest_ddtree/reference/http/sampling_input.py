"""Sampling parameters out of JSON, every key and type checked."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from ..sampling import SamplingParams
from .errors import RequestError

REFUSED = ("json_schema", "regex", "ebnf", "structural_tag")
"""Constrained decoding, which this server does not have."""
IGNORED_WHEN_DEFAULT: dict[str, object] = {
    "spaces_between_special_tokens": True,
    "custom_params": None,
    "stream_interval": None,
    "stop_regex": None,
}
NUMBERS: dict[str, tuple[float, float, str]] = {
    "temperature": (0.0, math.inf, "non-negative"),
    "top_p": (0.0, 1.0, "in (0, 1]"),
    "min_p": (0.0, 1.0, "in [0, 1]"),
    "frequency_penalty": (-2.0, 2.0, "in [-2, 2]"),
    "presence_penalty": (-2.0, 2.0, "in [-2, 2]"),
    "repetition_penalty": (0.0, 2.0, "in [0, 2]"),
}


def sampling_params(raw: Mapping[str, Any], vocab_size: int) -> SamplingParams:
    """Build SamplingParams from SGLang's ``sampling_params`` object.

    Raises:
        RequestError: an unknown key, a wrong type, a value out of range.
    """
    fields: dict[str, Any] = {}
    for key, value in raw.items():
        if key in REFUSED:
            if value is not None:
                raise RequestError(f"{key} is not supported: this server has no constrained decoding.")
        elif key in IGNORED_WHEN_DEFAULT:
            if value is not None and value != IGNORED_WHEN_DEFAULT[key]:
                raise RequestError(f"{key}={value!r} is not supported by this server.")
        elif key in NUMBERS:
            if value is not None:
                fields[key] = _number(key, value)
        elif key in ("max_new_tokens", "min_new_tokens", "top_k", "n"):
            if value is not None:
                fields[key] = _integer(key, value)
        elif key in ("ignore_eos", "skip_special_tokens", "no_stop_trim"):
            if value is not None:
                fields[key] = _boolean(key, value)
        elif key == "sampling_seed":
            fields["seed"] = None if value is None else _integer(key, value)
        elif key == "stop":
            fields["stop"] = _strings(value)
        elif key == "stop_token_ids":
            fields["stop_token_ids"] = _stop_ids(value)
        elif key == "logit_bias":
            fields["logit_bias"] = _bias(value, vocab_size)
        else:
            raise RequestError(f"Unknown sampling parameter {key!r}.")
    params = SamplingParams(**fields)
    _check(params)
    return params


def _check(params: SamplingParams) -> None:
    if params.top_p <= 0.0:
        raise RequestError(f"top_p must be in (0, 1], got {params.top_p}.")
    if params.repetition_penalty <= 0.0:
        raise RequestError(f"repetition_penalty must be in (0, 2], got {params.repetition_penalty}.")
    if params.top_k < -1 or params.top_k == 0:
        raise RequestError(f"top_k must be -1 (disable) or at least 1, got {params.top_k}.")
    if params.max_new_tokens < 0:
        raise RequestError(f"max_new_tokens must be at least 0, got {params.max_new_tokens}.")
    if not 0 <= params.min_new_tokens <= params.max_new_tokens:
        raise RequestError(
            f"min_new_tokens must be in [0, max_new_tokens({params.max_new_tokens})], got {params.min_new_tokens}."
        )
    if not 1 <= params.n <= 64:
        raise RequestError(f"n must be between 1 and 64, got {params.n}.")


def _number(key: str, value: object) -> float:
    low, high, text = NUMBERS[key]
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise RequestError(f"{key} must be a number, got {value!r}.")
    if not math.isfinite(value) or not low <= value <= high:
        raise RequestError(f"{key} must be {text}, got {value}.")
    return float(value)


def _integer(key: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise RequestError(f"{key} must be an integer, got {value!r}.")
    if not -(2**63) <= value < 2**63:
        raise RequestError(f"{key} is out of range: {value}.")
    return value


def _boolean(key: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise RequestError(f"{key} must be true or false, got {value!r}.")
    return value


def _stop_ids(value: object) -> tuple[int, ...]:
    if value is None:
        return ()
    if not isinstance(value, list):
        raise RequestError(f"stop_token_ids must be a list of integers, got {value!r}.")
    ids = tuple(_integer("stop_token_ids", token) for token in value)
    if any(token < 0 for token in ids):
        raise RequestError(f"stop_token_ids must be token ids, got {min(ids)}.")
    return ids


def _strings(value: object) -> tuple[str, ...]:
    if value is None:
        return ()
    found = [value] if isinstance(value, str) else value
    if not isinstance(found, list) or not all(isinstance(item, str) for item in found):
        raise RequestError(f"stop must be a string or a list of strings, got {value!r}.")
    return tuple(item for item in found if item)


def _bias(value: object, vocab_size: int) -> dict[int, float]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise RequestError(f"logit_bias must be an object, got {value!r}.")
    bias: dict[int, float] = {}
    for key, number in value.items():
        try:
            token = int(key)
        except ValueError:
            raise RequestError(f"logit_bias keys must be token ids, got {key!r}.") from None
        if not 0 <= token < vocab_size:
            raise RequestError(f"logit_bias names token {token}, outside the vocabulary of {vocab_size}.")
        if isinstance(number, bool) or not isinstance(number, (int, float)) or not -100 <= number <= 100:
            raise RequestError(f"logit_bias values must be between -100 and 100, got {number!r}.")
        bias[token] = float(number)
    return bias
