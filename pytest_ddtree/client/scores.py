"""Logprobs of given tokens (a prompt's) and of emitted ones, out of SGLang's `meta_info`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pytest_ddtree.client.errors import RefusesLogprobs, ScoreError
from pytest_ddtree.client.records import TokenScore


def input_logprob_fields(start: int, top: int) -> dict[str, Any]:
    """Fields of a request that ask for the logprobs of the prompt's tokens from position `start` on.

    A server gives no logprob to the first position that it is asked for, so it is asked for one more before.
    """
    if start < 1:
        raise ValueError(
            f"start must be at least 1, got {start}: nothing precedes position 0, so it has no logprob"
        )
    if top < 1:
        raise ValueError(f"top must be at least 1, got {top}: the gap needs the most probable token")
    return {"return_logprob": True, "logprob_start_len": start - 1, "top_logprobs_num": top}


def input_scores(meta: Mapping[str, Any], ids: Sequence[int], start: int) -> tuple[TokenScore, ...]:
    """Scores of positions start .. len(ids) - 1; ScoreError unless exactly these tokens came back."""
    want = len(ids) - start
    tokens, tops = meta.get("input_token_logprobs"), meta.get("input_top_logprobs")
    if tokens is None or tops is None:
        raise ScoreError("the server answered 200 but sent no input logprobs; does it honour return_logprob?")
    tokens, tops = _list(tokens), _list(tops)
    if len(tokens) == want + 1:
        tokens = tokens[1:]
    if len(tops) == want + 1:
        tops = tops[1:]
    return _scores(tokens, tops, ids[start:], start, "input")


def output_scores(meta: Mapping[str, Any], ids: Sequence[int], start: int) -> tuple[TokenScore, ...]:
    """Scores of the emitted tokens `ids`, the first of them at position `start`."""
    tokens, tops = meta.get("output_token_logprobs"), meta.get("output_top_logprobs")
    if tokens is None or tops is None:
        raise ScoreError(
            "the server answered 200 but sent no output logprobs; does it honour return_logprob?"
        )
    return _scores(_list(tokens), _list(tops), ids, start, "output")


def refusal(status: int, message: str) -> ScoreError:
    """The error for a status other than 200 to a request that asked for logprobs."""
    if 400 <= status < 500 and "logprob" in message.lower():
        return RefusesLogprobs(f"the server refuses logprobs: {message}", status=status, body=message)
    return ScoreError(f"HTTP {status} to a request for logprobs: {message}", status=status, body=message)


def _list(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise ScoreError(f"the server sent a {type(value).__name__} for a list of logprobs")
    return value


def _scores(
    tokens: list[Any], tops: list[Any], ids: Sequence[int], start: int, side: str
) -> tuple[TokenScore, ...]:
    if len(tokens) != len(ids) or len(tops) != len(ids):
        raise ScoreError(
            f"{len(ids)} {side} logprobs from position {start} on were asked for, "
            f"but {len(tokens)} and {len(tops)} lists of the most probable came back"
        )
    return tuple(
        _score(token_id, entry, best, start + index, side)
        for index, (token_id, entry, best) in enumerate(zip(ids, tokens, tops, strict=True))
    )


def _score(token_id: int, entry: Any, best: Any, position: int, side: str) -> TokenScore:
    """One position; a logprob that is no number came as null where it was infinite or none."""
    if entry is None or best is None:
        raise ScoreError(f"the server sent no logprob for position {position} ({side})")
    try:
        logprob, scored = entry[0], entry[1]
        if logprob is not None and scored != token_id:
            raise ScoreError(
                f"position {position} holds token {token_id}, but the server scored token {scored}"
            )
        ranked = sorted(((int(item[1]), float(item[0])) for item in best), key=_logprob, reverse=True)
        own = float(logprob)
    except (TypeError, ValueError, LookupError):
        raise ScoreError(
            f"the server sent no logprob for position {position} ({side}): {str(entry)[:80]}, best {str(best)[:80]}"
        ) from None
    if not ranked:
        raise ScoreError(f"the server sent no logprob for position {position} ({side})")
    return TokenScore(position=position, token_id=token_id, logprob=own, top=tuple(ranked))


def _logprob(entry: tuple[int, float]) -> float:
    return entry[1]
