"""The report of a corruption, as text for people: where, how bad, in which words, and how to see it again."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from pytest_ddtree.client.generate import sampling_params
from pytest_ddtree.client.records import Record
from pytest_ddtree.exactness.judged import UNSEEN_GAP, WorstToken
from pytest_ddtree.exactness.prompts import Prompt, emitted_ids
from pytest_ddtree.exactness.steps import place_in_step
from pytest_ddtree.exactness.verdict import Verdict

Decode = Callable[[Sequence[int]], str]

_BEFORE = 24
_AFTER = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Reproduction:
    """What was tried to see the corruption again, and the commands that do."""

    alone: bool | None = None
    """Whether it repeats at concurrency 1; None: not tried."""
    output: int | None = None
    """The shortest output length that still shows it, when that was searched for."""
    not_tried: str | None = None
    """Why it was not tried."""
    base_url: str | None = None
    pytest_command: str | None = None


def corruption_report(
    verdict: Verdict,
    prompts: Mapping[str, Prompt],
    records: Mapping[str, Record],
    *,
    decode: Decode,
    reproductions: Mapping[str, Reproduction] | None = None,
) -> str:
    """Everything known about the worst tokens of a verdict.

    `prompts` and `records` by tag; a worst token whose prompt or record is missing is reported without its
    text. `decode` turns token ids into text.
    """
    lines = [f"{verdict.config}: {verdict.summary()}"]
    lines += [f"  because {reason}" for reason in verdict.reasons]
    for token in verdict.worst:
        prompt, record = prompts.get(token.tag), records.get(token.tag)
        lines += ["", *_where(token, record, decode)]
        if prompt is not None and record is not None:
            tried = (reproductions or {}).get(token.tag, Reproduction())
            lines += _text(token, prompt, record, decode)
            lines += _again(prompt, record, tried)
    return "\n".join(lines)


def _where(token: WorstToken, record: Record | None, decode: Decode) -> list[str]:
    place = place_in_step(record, token.position) if record is not None else None
    step = "" if place is None else f", {place}"
    emitted = f"{token.score.token_id} {decode([token.score.token_id])!r}"
    lines = [
        f"  prompt {token.tag!r}, position {token.position} of the answer{step}",
    ]
    if 0 < token.score.gap <= UNSEEN_GAP:
        # Only the token that prefill puts there was asked for, so there is neither gap nor rank to show.
        best = token.score.top[0][0]
        lines.append(f"  emitted {emitted}; after the same tokens prefill gives {best} {decode([best])!r}")
        return lines
    rank = f"rank {token.rank}" if token.rank is not None else f"not among the best {len(token.score.top)}"
    lines.append(f"  emitted {emitted}: gap {token.score.gap:.4g} nats, {rank}; the judge's best:")
    for token_id, logprob in token.score.top[:5]:
        mark = "  <- emitted" if token_id == token.score.token_id else ""
        lines.append(f"    {logprob:9.4f}  {token_id} {decode([token_id])!r}{mark}")
    return lines


def _text(token: WorstToken, prompt: Prompt, record: Record, decode: Decode) -> list[str]:
    """The text around the token, what was emitted and what should have been marked by guillemets."""
    ids = (*prompt.ids, *emitted_ids(record))
    at = len(prompt.ids) + token.position
    before, after = decode(ids[max(0, at - _BEFORE) : at]), decode(ids[at + 1 : at + 1 + _AFTER])
    emitted, best = decode([token.score.token_id]), decode([token.score.top[0][0]])
    return [
        f"  emitted:  {before!r} >>>{emitted!r}<<< {after!r}",
        f"  baseline: {before!r} >>>{best!r}<<<",
    ]


def _again(prompt: Prompt, record: Record, tried: Reproduction) -> list[str]:
    lines = []
    if tried.not_tried is not None:
        lines.append(f"  not asked again: {tried.not_tried}")
    if tried.alone is not None:
        outcome = "repeats" if tried.alone else "does not repeat: it needs other requests beside it"
        lines.append(f"  at concurrency 1 it {outcome}")
    if tried.output is not None:
        lines.append(
            f"  still seen with an output of {tried.output} tokens and a prompt of {len(prompt.ids)}"
        )
    if tried.base_url is not None:
        lines.append("  to see it again while that server is up:")
        lines.append(f"  {curl_command(tried.base_url, prompt, record, output=tried.output)}")
    if tried.pytest_command is not None:
        lines.append("  to have it judged again:")
        lines.append(f"  {tried.pytest_command}")
    return lines


def curl_command(base_url: str, prompt: Prompt, record: Record, *, output: int | None = None) -> str:
    """One line that sends the request again and prints the answer's token ids with its text."""
    params = sampling_params(record.request.sampling)
    if output is not None:
        params["max_new_tokens"] = output
    body = json.dumps({"input_ids": list(prompt.ids), "sampling_params": params}, separators=(",", ":"))
    url = shlex.quote(f"{base_url.rstrip('/')}/generate")
    return f"curl -s {url} -H 'content-type: application/json' -d {shlex.quote(body)}"
