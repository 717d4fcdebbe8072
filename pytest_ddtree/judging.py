"""Verdicts on records of a user's own tests."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from pytest_ddtree.client.records import Record
from pytest_ddtree.coding.endings import ending_fault
from pytest_ddtree.errors import Infrastructure
from pytest_ddtree.exactness.levels import Prompt, self_consistency, teacher_force
from pytest_ddtree.exactness.prompts import emitted_ids
from pytest_ddtree.exactness.rule import judge
from pytest_ddtree.exactness.verdict import Level, Verdict
from pytest_ddtree.grid import Config

if TYPE_CHECKING:
    from pytest_ddtree.run import Run


class NotJudgeable(Infrastructure):
    """A record that no verdict can be made of; the text says why and what to ask instead."""


def verify_records(run: Run, config: Config, records: Sequence[Record]) -> Verdict:
    """The verdict on some greedy answers of a config: by a live baseline where there is one, else by its own prefill (flushed).

    Raises:
        NotJudgeable: an answer that is not ok, not greedy, or without token ids.
        Infrastructure: they could not be judged.
    """
    if not records:
        raise NotJudgeable("no record was given to judge")
    prompts, by_tag = [], {}
    for number, record in enumerate(records):
        ids = _prompt_ids(run, record)
        tag = record.request.tag or f"record {number}"
        tag = tag if tag not in by_tag else f"{tag} #{number}"
        prompts.append(Prompt(tag, ids))
        by_tag[tag] = record
    run.verifier.keep(config, prompts, by_tag)
    floor, rule = run.verifier.floor_and_rule()
    scorer = run.verifier.scorer()
    level: Level = "self" if scorer is None else "full"
    width = run.verifier.concurrency
    if scorer is not None:
        judged = run.await_(teacher_force(scorer, prompts, by_tag, concurrency=width))
    else:
        client = run.async_client(run.get(config))
        judged = run.await_(
            self_consistency(client, prompts, by_tag, concurrency=width, known=run.verifier.prefilled(config))
        )
    # There is no answer of the baseline beside these: the judge's own best tokens are what it would have said.
    judged = [replace(one, identical=not one.off) if one.identical is None else one for one in judged]
    verdict = judge(judged, floor, rule, config=config.id, level=level)
    faults = [
        f"{tag}: {fault}" for tag, record in by_tag.items() if (fault := ending_of(record, run.facts.eos))
    ]
    if faults:
        worst = verdict.worst if verdict.kind == "corrupt" else ()
        verdict = replace(verdict, kind="corrupt", reasons=(*verdict.reasons, *faults), worst=worst)
    if verdict.kind == "corrupt":
        run.results.verdicts.setdefault(config.id, []).append(verdict)
        run.store("verdict", verdict=verdict.as_json())
    return verdict


def ending_of(record: Record, eos: Collection[int]) -> str | None:
    """What is wrong with where an answer ended, None where nothing is. `eos` are the model's own stop tokens.

    Tokens behind a missed stop are what the model itself would go on with, so teacher forcing finds nothing in them.
    """
    sampling = record.request.sampling
    # Builds that leave the stop token out of the ids end in any token: how it ended is not asked, only what came after.
    stops = frozenset() if sampling.ignore_eos else frozenset(eos) | frozenset(sampling.stop_token_ids)
    return ending_fault(emitted_ids(record), None, finish=None, eos=stops, limit=sampling.max_new_tokens)


def _prompt_ids(run: Run, record: Record) -> tuple[int, ...]:
    """The ids that the server saw. Raises NotJudgeable for a record that no verdict can be made of."""
    name = record.request.tag or "the record"
    if not record.ok:
        raise NotJudgeable(f"{name} is not ok but {record.outcome}: {record.error}")
    sampling = record.request.sampling
    if sampling.temperature > 0 and sampling.top_k != 1:
        raise NotJudgeable(
            f"{name} was sampled at temperature {sampling.temperature:g}: only greedy answers are judged token by token"
        )
    if sampling.extra:
        raise NotJudgeable(
            f"{name} was asked with {', '.join(sampling.extra)}, which changes what is greedy: ask without it"
        )
    if not emitted_ids(record):
        raise NotJudgeable(f"{name} has no token ids: answers are judged by ids, ask through /generate")
    if record.request.input_ids is not None:
        return tuple(record.request.input_ids)
    text = record.request.text or ""
    ids = run.maker("code").text_ids(text)
    if record.prompt_tokens not in (None, len(ids)):
        ids = run.maker("code").chat_ids(text)
    if record.prompt_tokens not in (None, len(ids)):
        raise NotJudgeable(
            f"{name}: its prompt had {record.prompt_tokens} tokens on the server and has {len(ids)} here: ask with input_ids"
        )
    return ids
