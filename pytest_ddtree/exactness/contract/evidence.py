"""What a contract procedure is given and what it hands back: evidence, to be judged at once or later."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pytest_ddtree.client.client import AsyncClient
from pytest_ddtree.client.records import Record, Request, Sampling
from pytest_ddtree.exactness.parallel import each
from pytest_ddtree.exactness.prompts import Prompt

Decode = Callable[[Sequence[int]], str]
AnswerKey = tuple[tuple[int, ...], int, bool]
"""The ids of a prompt, how many tokens were asked for, and whether it was asked alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """The server under contract and what is known about it; None: not known, what needs it is skipped.

    `prompts` differ in length and are short enough to be answered with `output` tokens more. `decode` turns
    ids into the text that the server would send for them (special tokens left out).
    """

    client: AsyncClient
    prompts: tuple[Prompt, ...]
    decode: Decode
    output: int = 64
    long_output: int = 2048
    """Tokens of the long answers."""
    eos: frozenset[int] = frozenset()
    vocab_size: int | None = None
    block_size: int | None = None
    """Positions that the drafter predicts in one pass; None for a server without a drafter."""
    window: int | None = None
    page_size: int | None = None
    chunked_prefill: int | None = None
    context_length: int | None = None
    cache_tokens: int | None = None
    """Tokens that the server's KV cache holds."""
    deadline_s: float = 120.0
    seed: int = 0
    float32: bool = False
    """Whether the server computes in float32, so that the same drafts come out of the same context."""
    ignore_eos: bool = True
    """Whether judged answers go on past their end: more tokens to judge. The floor must be measured alike."""
    known: dict[AnswerKey, Record] = field(default_factory=dict)
    """Greedy answers of this server that several clauses need, past their end; whoever needs one first asks."""

    def greedy(self, output: int | None = None) -> Sampling:
        """Sampling of the answers that are judged, for `output` tokens."""
        return greedy(self.output if output is None else output, ignore_eos=self.ignore_eos)


@dataclass(frozen=True, slots=True)
class Answer:
    """A greedy answer that a judge can teacher-force: the prompt as it was sent, and the record."""

    prompt: Prompt
    record: Record


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What a procedure found by itself, and the greedy answers that are still to be judged.

    `problems` are faults of the server, in words for people; `skipped` says why nothing could be tested;
    `notes` are worth showing and no fault (a parameter that was refused).
    """

    problems: tuple[str, ...] = ()
    answers: tuple[Answer, ...] = ()
    skipped: str | None = None
    notes: tuple[str, ...] = ()

    @property
    def prompts(self) -> list[Prompt]:
        """The prompts of the answers to judge."""
        return [answer.prompt for answer in self.answers]

    @property
    def records(self) -> dict[str, Record]:
        """Tag -> record of the answers to judge."""
        return {answer.prompt.tag: answer.record for answer in self.answers}


@dataclass(slots=True)
class Gathering:
    """Evidence while a procedure runs."""

    problems: list[str] = field(default_factory=list)
    answers: list[Answer] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def add(self, prompt: Prompt, record: Record, what: str) -> bool:
        """Take an answer to be judged, under the name of `what`; an answer that is not ok is a problem.

        Says whether the record is ok.
        """
        if not self.check(record, what):
            return False
        self.answers.append(Answer(Prompt(f"{prompt.tag}, {what}", prompt.ids), record))
        return True

    def check(self, record: Record, what: str) -> bool:
        """Whether a record is ok; else it is a problem."""
        if record.ok:
            return True
        self.problems.append(failure(record, what))
        return False

    def evidence(self) -> Evidence:
        """What was gathered. Answers of one name are numbered, so that each can be judged."""
        seen: dict[str, int] = {}
        answers = []
        for answer in self.answers:
            tag = answer.prompt.tag
            seen[tag] = seen.get(tag, 0) + 1
            name = tag if seen[tag] == 1 else f"{tag} #{seen[tag]}"
            answers.append(Answer(replace(answer.prompt, tag=name), answer.record))
        return Evidence(problems=tuple(self.problems), answers=tuple(answers), notes=tuple(self.notes))


def failure(record: Record, what: str) -> str:
    """An answer that is not ok, in one line."""
    status = "" if record.http_status in (None, 200) else f", HTTP {record.http_status}"
    return f"{record.request.tag} ({what}): {record.outcome}{status}: {record.error}"


def greedy(output: int, **changes: Any) -> Sampling:
    """Sampling at temperature 0 for `output` tokens, with these fields of `Sampling` besides."""
    return Sampling(max_new_tokens=output, temperature=0.0, **changes)


async def ask(subject: Subject, prompt: Prompt, sampling: Sampling, *, stream: bool = True) -> Record:
    """One request under the subject's deadline."""
    request = Request(sampling=sampling, input_ids=prompt.ids, tag=prompt.tag)
    return await subject.client.generate(request, stream=stream, deadline_s=subject.deadline_s)


class Gone(Exception):
    """The server closed a connection or missed a deadline; asking it more would only wait for more deadlines."""

    def __init__(self, record: Record) -> None:
        super().__init__(failure(record, "asked under the contract"))
        self.record = record


async def ask_all(
    subject: Subject,
    prompts: Sequence[Prompt],
    sampling: Sampling | Mapping[str, Sampling],
    *,
    concurrency: int,
    stream: bool = True,
) -> list[Record]:
    """One request to each prompt, `concurrency` at a time; `sampling` may differ by tag.

    Raises Gone at the first answer that was broken off by the server or by the deadline.
    """

    async def one(prompt: Prompt) -> Record:
        own = sampling if isinstance(sampling, Sampling) else sampling[prompt.tag]
        record = await ask(subject, prompt, own, stream=stream)
        if record.outcome in ("timeout", "reset"):
            raise Gone(record)
        return record

    return await each(one, prompts, concurrency)


async def plain(
    subject: Subject, prompts: Sequence[Prompt], output: int | None = None, *, concurrency: int = 4
) -> list[Record]:
    """Greedy answers of `output` tokens, past their end: those that an earlier clause got, the others asked now.

    With a concurrency of 1 only answers that were got alone do. Raises Gone.
    """
    tokens = subject.output if output is None else output
    alone = concurrency == 1
    missing = [prompt for prompt in prompts if _known(subject, prompt, tokens, alone=alone) is None]
    asked = await ask_all(subject, missing, greedy(tokens, ignore_eos=True), concurrency=concurrency)
    fresh = {prompt.ids: record for prompt, record in zip(missing, asked, strict=True)}
    for prompt, record in zip(missing, asked, strict=True):
        if record.ok:
            subject.known[prompt.ids, tokens, alone] = record
    found = (fresh.get(prompt.ids) or _known(subject, prompt, tokens, alone=alone) for prompt in prompts)
    return [record for record in found if record is not None]


def _known(subject: Subject, prompt: Prompt, output: int, *, alone: bool) -> Record | None:
    by_itself = subject.known.get((prompt.ids, output, True))
    return by_itself if alone or by_itself is not None else subject.known.get((prompt.ids, output, False))


def long_room(subject: Subject, prompts: Sequence[Prompt]) -> int:
    """How many tokens a long answer to each of these prompts may have: the subject's, or what the context leaves."""
    if subject.context_length is None:
        return subject.long_output
    return min(subject.long_output, subject.context_length - max(len(prompt.ids) for prompt in prompts) - 16)


def taken(prompts: Sequence[Prompt], count: int) -> list[Prompt]:
    """`count` prompts, the given ones over and over, each time under a name of its own."""
    found = []
    for index in range(count):
        prompt = prompts[index % len(prompts)]
        turn = index // len(prompts)
        found.append(prompt if turn == 0 else Prompt(f"{prompt.tag}/{turn}", prompt.ids))
    return found


def of_length(prompts: Sequence[Prompt], length: int, *, start: int = 0) -> Prompt:
    """A prompt of exactly `length` tokens, made of the given ones from the `start`-th on, over and over."""
    ids: list[int] = []
    at = start
    while len(ids) < length:
        ids.extend(prompts[at % len(prompts)].ids)
        at += 1
    return Prompt(f"{length} tokens", tuple(ids[:length]))
