"""Contract: sampling parameters are honoured, or refused, but never silently ignored."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence

from pytest_ddtree.client.records import Record, Sampling
from pytest_ddtree.exactness.contract.evidence import (
    Evidence,
    Gathering,
    Subject,
    ask_all,
    failure,
    greedy,
    plain,
)
from pytest_ddtree.exactness.prompts import Prompt, emitted_ids
from pytest_ddtree.exactness.verdict import Verdict


def refused(record: Record) -> bool:
    """Whether the server refused a request by a status of 400 to 499: an honest answer, and no fault.

    SGLang sends that status as the reason of an abort where the scheduler is the one that refuses: the stream had begun by then.
    """
    status: object = None
    if record.outcome == "rejected":
        status = record.http_status
    elif record.outcome == "aborted":
        status = (record.finish_reason or {}).get("status_code")
    return isinstance(status, int) and 400 <= status < 500


def _take(found: Gathering, record: Record, what: str) -> bool:
    """Whether a record can be looked at; a refusal is a note, any other failure a problem."""
    if refused(record):
        note = f"{what} is refused: {record.error}"
        if note not in found.notes:
            found.notes.append(note)
        return False
    if not record.ok:
        found.problems.append(failure(record, what))
    return record.ok


async def logit_bias(subject: Subject, *, count: int = 3) -> Evidence:
    """logit_bias of +100 makes every token that one; of -100 the token never comes."""
    found = Gathering()
    prompts = subject.prompts[:count]
    tries: list[tuple[Prompt, int, float]] = []
    for prompt, record in zip(prompts, await plain(subject, prompts), strict=True):
        if found.check(record, "without bias"):
            common = Counter(record.output_ids).most_common(1)[0][0]
            for bias, token_id in ((100.0, record.output_ids[-1]), (-100.0, common)):
                tries.append((Prompt(f"{prompt.tag}, {bias:+g} on {token_id}", prompt.ids), token_id, bias))
    sampling = {
        prompt.tag: greedy(subject.output, ignore_eos=True, extra={"logit_bias": {str(token_id): bias}})
        for prompt, token_id, bias in tries
    }
    records = await ask_all(subject, [prompt for prompt, _, _ in tries], sampling, concurrency=4)
    for (prompt, token_id, bias), biased in zip(tries, records, strict=True):
        if not _take(found, biased, f"logit_bias {bias:+g}"):
            continue
        total, others = len(biased.output_ids), sum(1 for other in biased.output_ids if other != token_id)
        if bias > 0 and others:
            found.problems.append(f"{prompt.tag} (logit_bias): {others} of {total} tokens are others")
        elif bias < 0 and others < total:
            found.problems.append(f"{prompt.tag} (logit_bias): the token comes {total - others} times")
    return found.evidence()


PENALTIES: Mapping[str, float] = {
    "frequency_penalty": 2.0,
    "presence_penalty": 2.0,
    "repetition_penalty": 1.8,
}


async def penalties(subject: Subject, *, count: int = 3, among: int = 16) -> Evidence:
    """Each penalty changes answers that repeat tokens: it is honoured, if perhaps once per block.

    A logit bias confines the answers to a few tokens, so that they must repeat and the next best is near;
    without it a confident model may answer the same under any penalty. Where the bias is refused the plain
    answers are used, and those that repeat little are left out.
    """
    found = Gathering()
    prompts = list(subject.prompts[:count])
    free = await plain(subject, prompts)
    for record in free:
        found.check(record, "without penalty")
    if found.problems:
        return found.evidence()
    common = Counter(token for record in free for token in record.output_ids if token not in subject.eos)
    bias = {"logit_bias": {str(token): 60.0 for token, _ in common.most_common(among)}}
    confined = await ask_all(
        subject, prompts, greedy(subject.output, ignore_eos=True, extra=bias), concurrency=count
    )
    if any(refused(record) for record in confined):
        bias, confined = {}, free
    repeating = [
        (prompt, record)
        for prompt, record in zip(prompts, confined, strict=True)
        if found.check(record, "confined to a few tokens")
        and repeats(record.output_ids) >= subject.output // 4
    ]
    if not repeating and not found.problems:
        return Evidence(skipped="no answer repeats enough tokens for a penalty to show")
    asked = [prompt for prompt, _ in repeating]
    for name, value in PENALTIES.items():
        sampling = greedy(subject.output, ignore_eos=True, extra={name: value, **bias})
        records = await ask_all(subject, asked, sampling, concurrency=count)
        taken = [
            (old, new)
            for (_, old), new in zip(repeating, records, strict=True)
            if _take(found, new, f"{name} {value:g}")
        ]
        if taken and all(old.output_ids == new.output_ids for old, new in taken):
            found.problems.append(f"{name} {value:g} changes none of {len(taken)} answers: it is ignored")
    return found.evidence()


def repeats(ids: Sequence[int]) -> int:
    """Tokens that were there before."""
    return len(ids) - len(set(ids))


COLD: Mapping[str, Mapping[str, float | int]] = {
    "min_p 1": {"min_p": 1.0},
    "top_k 1": {"top_k": 1},
    "top_p 1e-6": {"top_p": 1e-6},
}


async def truncation(subject: Subject, *, count: int = 3) -> Evidence:
    """At temperature 1, min_p 1, top_k 1 and a tiny top_p leave only the best token: the answer is greedy.

    Judged by teacher forcing like any greedy answer: where a parameter is ignored, tokens are far from the best. See `ignored`.
    """
    found = Gathering()
    prompts = subject.prompts[:count]
    for name, values in COLD.items():
        sampling = Sampling(
            max_new_tokens=subject.output,
            temperature=1.0,
            seed=subject.seed + 17,
            top_p=float(values["top_p"]) if "top_p" in values else None,
            top_k=int(values["top_k"]) if "top_k" in values else None,
            min_p=float(values["min_p"]) if "min_p" in values else None,
        )
        records = await ask_all(subject, prompts, sampling, concurrency=count)
        for prompt, record in zip(prompts, records, strict=True):
            if _take(found, record, name):
                found.add(prompt, record, name)
    return found.evidence()


def ignored(verdict: Verdict) -> str:
    """What a corrupt verdict on answers of `truncation` says: which parameters, as far as the worst tokens show, and how much."""
    names = sorted(
        {token.tag.rpartition(", ")[2] for token in verdict.worst if token.score.gap > verdict.gap_limit}
    )
    what = " and ".join(names) or "min_p, top_k or top_p"
    return f"{what} {'are' if len(names) > 1 else 'is'} not honoured, answers should be greedy: {'; '.join(verdict.reasons)}"


MANY, FLOORS, FEW = 0.10, 5.0, 3
"""When an answer is a sample: the share of its tokens that are not the argmax, in floors too, and the least number of them."""


def by_parameter(evidence: Evidence) -> dict[str, list[Evidence]]:
    """The answers of `truncation`, each by itself, by the name of the parameter that made them."""
    found: dict[str, list[Evidence]] = {}
    for answer in evidence.answers:
        found.setdefault(answer.prompt.tag.rpartition(", ")[2], []).append(Evidence(answers=(answer,)))
    return found


def sampled(name: str, verdicts: Sequence[Verdict]) -> str:
    """Why the answers under one parameter are samples and not greedy; empty where they can be greedy. One verdict an answer.

    A few answers whose gaps are not known (level self) make no verdict together, though a third of their tokens is not the
    argmax. Greedy ones of 64 tokens at twice a floor of 1 % have 7 such tokens once in 2500; all three of them, never.
    """
    if not verdicts or not all(
        one.off >= FEW and one.off > max(MANY, FLOORS * one.floor_share) * one.tokens for one in verdicts
    ):
        return ""
    off, tokens = sum(one.off for one in verdicts), sum(one.tokens for one in verdicts)
    return (
        f"{name} is not honoured, answers should be greedy: {off} of {tokens} tokens are not the argmax, in each of "
        f"{len(verdicts)} answers more than {max(MANY, FLOORS * verdicts[0].floor_share):.0%}"
    )


async def seeds(subject: Subject, *, count: int = 3, rounds: int = 8, enough: int = 3) -> Evidence:
    """At temperature 1 other seeds give other answers: the temperature is not ignored.

    The first token is prefill's, which may honour what the verify walk ignores; so answers are compared that begin alike.
    Seeds are tried until two such answers differ, as they soon do, or `enough` have repeated an earlier one to the end.
    """
    found = Gathering()
    prompts = list(subject.prompts[:count])
    answers: list[list[tuple[int, ...]]] = [[] for _ in prompts]
    for seed in range(rounds):
        sampling = Sampling(
            max_new_tokens=max(16, subject.output // 2),
            temperature=1.0,
            top_p=1.0,
            top_k=-1,
            seed=subject.seed + seed,
            ignore_eos=True,
        )
        records = await ask_all(subject, prompts, sampling, concurrency=count)
        if not all(_take(found, record, "temperature 1") for record in records):
            return found.evidence()
        for of_prompt, record in zip(answers, records, strict=True):
            of_prompt.append(emitted_ids(record))
        same, other = begun_alike(answers)
        if other:
            return found.evidence()
        if same >= enough:
            found.problems.append(
                f"at temperature 1, {same} answers under other seeds repeat one that began with the same token, and none "
                "differs from it: the temperature is ignored"
            )
            return found.evidence()
    found.notes.append(f"too few answers begin alike under {rounds} seeds: what follows was not compared")
    return found.evidence()


def begun_alike(answers: Sequence[Sequence[tuple[int, ...]]]) -> tuple[int, int]:
    """Of each prompt's answers, those that begin with the token of an earlier one: how many are that answer, how many differ."""
    same = other = 0
    for of_prompt in answers:
        first: dict[tuple[int, ...], tuple[int, ...]] = {}
        for ids in of_prompt:
            earlier = first.get(ids[:1])
            if earlier is None:
                first[ids[:1]] = ids
            elif earlier == ids:
                same += 1
            else:
                other += 1
    return same, other


SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 12}, "count": {"type": "integer", "maximum": 99}},
    "required": ["name", "count"],
    "additionalProperties": False,
}


async def grammar(subject: Subject, *, count: int = 3) -> Evidence:
    """With a JSON schema the answer is valid by it, or the server refuses the schema."""
    found = Gathering()
    prompts: list[Prompt] = list(subject.prompts[:count])
    sampling = greedy(max(96, subject.output), extra={"json_schema": json.dumps(SCHEMA)})
    records = await ask_all(subject, prompts, sampling, concurrency=count)
    for prompt, record in zip(prompts, records, strict=True):
        if not _take(found, record, "json_schema"):
            continue
        if (record.finish_reason or {}).get("type") == "length":
            found.notes.append(f"{prompt.tag}: the length limit cut the JSON")
            problem = beginning_problem(record.text)
        else:
            problem = json_problem(record.text)
        if problem is not None:
            found.problems.append(
                f"{prompt.tag}: the answer to a JSON schema {problem}: {record.text[:80]!r}"
            )
    return found.evidence()


def beginning_problem(text: str) -> str | None:
    """Why no JSON by `SCHEMA` begins with `text`, as far as its first member's name; None if one may."""
    opened = text.lstrip()
    member = opened[1:].lstrip()
    names = [f'"{name}"' for name in ("name", "count")]
    begun = any(member.startswith(name) or name.startswith(member) for name in names)
    return None if not opened or (opened.startswith("{") and begun) else "does not begin as such an object"


def json_problem(text: str) -> str | None:
    """Why `text` is not valid by `SCHEMA`; None if it is."""
    try:
        value = json.loads(text)
    except ValueError as error:
        return f"is no JSON ({error})"
    if not isinstance(value, dict) or set(value) != {"name", "count"}:
        return "has not exactly the members name and count"
    if not isinstance(value["name"], str) or len(value["name"]) > 12:
        return "has no name of at most 12 characters"
    if not isinstance(value["count"], int) or isinstance(value["count"], bool) or value["count"] > 99:
        return "has no whole count of at most 99"
    return None
