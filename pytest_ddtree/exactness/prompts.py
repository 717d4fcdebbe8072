"""What the exactness procedures ask, and what they hand on: prompts, answers, and the failure to get one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pytest_ddtree.client.records import Record, TokenScore
from pytest_ddtree.errors import Infrastructure


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt by its token ids; `tag` names it for people and is unique in a set."""

    tag: str
    ids: tuple[int, ...]


class AnswerFailed(Infrastructure):
    """An answer that is not `ok`: infrastructure, no verdict. The text names the prompt, the outcome and the
    server's words."""

    def __init__(self, record: Record, what: str = "an answer to judge") -> None:
        said = record.error or "the server said nothing"
        status = "" if record.http_status in (None, 200) else f" (HTTP {record.http_status})"
        super().__init__(f"{what} failed: prompt {record.request.tag!r}: {record.outcome}{status}: {said}")
        self.record = record


@dataclass(frozen=True, slots=True)
class BaselineAnswers:
    """What the baseline answered: tag -> record, and its decode-time score at every emitted position."""

    records: Mapping[str, Record]
    scores: Mapping[str, tuple[TokenScore, ...]]


def emitted_ids(record: Record) -> tuple[int, ...]:
    """The tokens that the model emitted, the stop token included.

    Some builds count the token that ended an answer but leave it out of the ids; `finish_reason` then names
    it. It is judged like any other: stopping where the baseline would not have is a divergence.
    """
    reason = record.finish_reason or {}
    matched = reason.get("matched")
    ids = record.output_ids
    if reason.get("type") == "stop" and isinstance(matched, int) and record.completion_tokens == len(ids) + 1:
        return (*ids, matched)
    return ids


def prompts_by_tag(prompts: list[Prompt] | tuple[Prompt, ...]) -> dict[str, Prompt]:
    """Tag -> prompt; ValueError for a tag that occurs twice or a prompt without tokens."""
    by_tag: dict[str, Prompt] = {}
    for prompt in prompts:
        if prompt.tag in by_tag:
            raise ValueError(f"two prompts are called {prompt.tag!r}")
        if not prompt.ids:
            raise ValueError(f"prompt {prompt.tag!r} has no tokens")
        by_tag[prompt.tag] = prompt
    return by_tag
