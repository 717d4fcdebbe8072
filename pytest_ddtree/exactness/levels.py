"""The levels at which answers are judged: `self`, `first-divergence`, `full`."""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import replace

from pytest_ddtree.client.client import AsyncClient
from pytest_ddtree.client.errors import RefusesLogprobs
from pytest_ddtree.client.records import Record, Request, Sampling, TokenScore
from pytest_ddtree.errors import Infrastructure
from pytest_ddtree.exactness.judged import UNSEEN_GAP, JudgedAnswer
from pytest_ddtree.exactness.parallel import each
from pytest_ddtree.exactness.prompts import AnswerFailed as AnswerFailed
from pytest_ddtree.exactness.prompts import BaselineAnswers as BaselineAnswers
from pytest_ddtree.exactness.prompts import Prompt as Prompt
from pytest_ddtree.exactness.prompts import emitted_ids, prompts_by_tag
from pytest_ddtree.exactness.scores import Scores

Prefilled = dict[bytes, int]
"""Digest of a prefix -> the token that prefill puts after it."""


async def collect(
    client: AsyncClient,
    prompts: Sequence[Prompt],
    *,
    output: int,
    concurrency: int,
    ignore_eos: bool = False,
    temperature: float = 0.0,
    seed: int | None = None,
) -> dict[str, Record]:
    """One answer to each prompt, `concurrency` at a time: tag -> record.

    Raises AnswerFailed at the first answer that is not `ok`; the others are cancelled.
    """
    prompts_by_tag(list(prompts))
    sampling = Sampling(max_new_tokens=output, temperature=temperature, seed=seed, ignore_eos=ignore_eos)

    async def answer(prompt: Prompt) -> Record:
        record = await client.generate(Request(sampling=sampling, input_ids=prompt.ids, tag=prompt.tag))
        if not record.ok:
            raise AnswerFailed(record)
        return record

    records = await each(answer, prompts, concurrency)
    return {prompt.tag: record for prompt, record in zip(prompts, records, strict=True)}


async def teacher_force(
    client: AsyncClient,
    prompts: Sequence[Prompt],
    records: Mapping[str, Record],
    *,
    top: int = 5,
    concurrency: int,
    baseline: BaselineAnswers | None = None,
    known: Scores | None = None,
) -> list[JudgedAnswer]:
    """Level full: every emitted token of these answers, the stop token included, under the server behind
    `client`.

    With `baseline` it is also said which answers are the baseline's own. What the same judge said before is in
    `known` and not asked again. A prompt without a record is left out. Raises what `AsyncClient.score` raises,
    ScoreError unless as many positions came back as were emitted.
    """

    async def judge(prompt: Prompt) -> JudgedAnswer:
        emitted = emitted_ids(records[prompt.tag])
        return JudgedAnswer(
            tag=prompt.tag,
            prompt_tokens=len(prompt.ids),
            scores=await _scored(client, prompt.ids, emitted, top, known) if emitted else (),
            identical=_identical(prompt.tag, emitted, baseline),
            asked=_digest(prompt.ids),
        )

    return await each(judge, [prompt for prompt in prompts if prompt.tag in records], concurrency)


async def _scored(
    client: AsyncClient, prompt: tuple[int, ...], emitted: tuple[int, ...], top: int, known: Scores | None
) -> tuple[TokenScore, ...]:
    found = None if known is None else known.find(prompt, emitted, top=top)
    if found is None:
        found = await client.score((*prompt, *emitted), len(prompt), top=top)
        if known is not None:
            known.add(prompt, found, top=top)
    return found


def first_divergence(
    prompts: Sequence[Prompt], records: Mapping[str, Record], baseline: BaselineAnswers
) -> list[JudgedAnswer]:
    """Level first-divergence: each answer against the recorded one, up to and with the first token that
    differs.

    The scores are the baseline's own of that position. A token outside the recorded top-k is at most as
    probable as the last of them; that bound is its logprob, so its gap is the smallest it can be. Raises
    KeyError for a prompt that was not recorded.
    """
    return [
        _first_divergence(prompt, records[prompt.tag], baseline)
        for prompt in prompts
        if prompt.tag in records
    ]


def _first_divergence(prompt: Prompt, record: Record, baseline: BaselineAnswers) -> JudgedAnswer:
    emitted = emitted_ids(record)
    scores: list[TokenScore] = []
    for token_id, recorded in zip(emitted, baseline.scores[prompt.tag], strict=False):
        if token_id == recorded.token_id:
            scores.append(recorded)
            continue
        known = dict(recorded.top)
        scores.append(replace(recorded, token_id=token_id, logprob=known.get(token_id, recorded.top[-1][1])))
        break
    return JudgedAnswer(
        tag=prompt.tag,
        prompt_tokens=len(prompt.ids),
        scores=tuple(scores),
        identical=_identical(prompt.tag, emitted, baseline),
        asked=_digest(prompt.ids),
    )


async def self_consistency(
    client: AsyncClient,
    prompts: Sequence[Prompt],
    records: Mapping[str, Record],
    *,
    top: int = 5,
    concurrency: int = 8,
    known: Prefilled | None = None,
) -> list[JudgedAnswer]:
    """Level self: the answers of a server under its own prefill, on a flushed cache.

    Where the server returns input logprobs, its prefill scores the answers. Else prompt + answer is sent
    once, which leaves it in the prefix cache as prefill computed it, and then every shorter prefix with one
    new token at temperature 0: that token comes from prefill, not from the tree. There only ids are known; a
    token that is not the prefill's gets the gap `UNSEEN_GAP`, so that such answers are judged by their share
    of non-argmax tokens alone. Judges mask, positions and compaction; not prefill nor weights.
    What prefill said of a prefix is kept in `known` and not asked again: most answers of a healthy server repeat.

    Raises ControlError if the cache cannot be flushed, AnswerFailed for a prefix without an answer,
    SelfLevelUnavailable if the one new token did not come from prefill.
    """
    await client.flush_cache()
    judged_prompts = [
        prompt for prompt in prompts if prompt.tag in records and emitted_ids(records[prompt.tag])
    ]
    if not judged_prompts:
        return []
    try:
        first = await teacher_force(client, judged_prompts[:1], records, top=top, concurrency=1)
    except RefusesLogprobs:
        return [
            await _by_prefixes(
                client, prompt, records[prompt.tag], concurrency, {} if known is None else known
            )
            for prompt in judged_prompts
        ]
    return first + await teacher_force(client, judged_prompts[1:], records, top=top, concurrency=concurrency)


class SelfLevelUnavailable(Infrastructure):
    """The first token after a cached prefix does not come from prefill on this server, so it cannot judge its
    own tree."""


async def _by_prefixes(
    client: AsyncClient, prompt: Prompt, record: Record, concurrency: int, known: Prefilled
) -> JudgedAnswer:
    emitted = emitted_ids(record)
    ids = (*prompt.ids, *emitted)
    prefixes = [_digest(ids[: len(prompt.ids) + index]) for index in range(len(emitted))]
    if not known.keys() >= set(prefixes):
        await _next_token(client, prompt.tag, ids)

    async def score(index: int) -> TokenScore:
        position = len(prompt.ids) + index
        prefix = prefixes[index]
        if prefix not in known:
            known[prefix] = await _next_token(client, prompt.tag, ids[:position])
        best = known[prefix]
        token_id = emitted[index]
        logprob = 0.0 if best == token_id else -UNSEEN_GAP
        return TokenScore(position=position, token_id=token_id, logprob=logprob, top=((best, 0.0),))

    scores = await each(score, range(len(emitted)), concurrency)
    return JudgedAnswer(
        tag=prompt.tag, prompt_tokens=len(prompt.ids), scores=tuple(scores), asked=_digest(prompt.ids)
    )


def _digest(ids: tuple[int, ...]) -> bytes:
    return hashlib.blake2b(array("q", ids).tobytes(), digest_size=16).digest()


async def _next_token(client: AsyncClient, tag: str, ids: tuple[int, ...]) -> int:
    """The token that prefill puts after `ids`."""
    request = Request(
        sampling=Sampling(max_new_tokens=1), input_ids=ids, tag=f"{tag} after {len(ids)} tokens"
    )
    record = await client.generate(request, stream=False)
    emitted = emitted_ids(record)
    if not record.ok or len(emitted) != 1:
        raise AnswerFailed(record, "the one token after a prefix")
    if record.verify_steps is not None:
        raise SelfLevelUnavailable(
            f"the first token after {len(ids)} tokens took {record.verify_steps} verify steps, so it is the "
            "tree's and not prefill's: judge this server at level first-divergence or full"
        )
    return emitted[0]


def _identical(tag: str, emitted: tuple[int, ...], baseline: BaselineAnswers | None) -> bool | None:
    if baseline is None or tag not in baseline.records:
        return None
    return emitted == emitted_ids(baseline.records[tag])
