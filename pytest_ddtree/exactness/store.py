"""Baseline records on disk, with the fingerprint that says what they may be compared with."""

from __future__ import annotations

import gzip
import json
import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pytest_ddtree.client.records import Record, Request, Sampling, TokenScore
from pytest_ddtree.errors import Infrastructure
from pytest_ddtree.exactness.fingerprint import Fingerprint
from pytest_ddtree.exactness.floor import NoiseFloor
from pytest_ddtree.exactness.prompts import BaselineAnswers, Prompt

SCHEMA = 1
_PATTERN = "baseline-*.json.gz"


class RecordsRefused(Infrastructure):
    """Stored baseline records do not belong to this run; the text names every field that differs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredBaseline:
    """Baseline answers with the floor measured along with them."""

    fingerprint: Fingerprint
    answers: BaselineAnswers
    floor: NoiseFloor
    made: str
    """When, ISO 8601, UTC."""


def save_records(
    folder: Path,
    fingerprint: Fingerprint,
    prompts: Sequence[Prompt],
    answers: BaselineAnswers,
    floor: NoiseFloor,
    *,
    now: datetime | None = None,
) -> Path:
    """Write the records of these prompts into `folder`, replacing older ones of the same build and prompts.

    The file appears whole or not at all. Raises OSError where the folder cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    value = {
        "schema": SCHEMA,
        "made": (now or datetime.now(UTC)).isoformat(timespec="seconds"),
        "fingerprint": fingerprint.as_json(),
        "floor": floor.as_json(),
        "answers": [_answer_json(prompt, answers) for prompt in prompts],
    }
    path = folder / f"baseline-{fingerprint.prompts}-{_slug(fingerprint.build)}.json.gz"
    handle, name = tempfile.mkstemp(dir=folder, suffix=".part")
    try:
        with os.fdopen(handle, "wb") as file:
            # No time stamp inside: the same records make the same bytes.
            file.write(gzip.compress(json.dumps(value, separators=(",", ":")).encode(), mtime=0))
            file.flush()
            os.fsync(file.fileno())
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise
    return path


def load_records(
    folder: Path, fingerprint: Fingerprint, prompts: Sequence[Prompt], *, from_build: str | None = None
) -> StoredBaseline | None:
    """The records in `folder` that belong to this run; None where the folder holds none at all.

    Raises:
        RecordsRefused: there are records, but each is broken or differs in its fingerprint; the text names
            the closest file and what differs. `from_build` names the build whose records are wanted instead
            of the one here.
    """
    refused: list[tuple[int, str]] = []
    for path in sorted(folder.glob(_PATTERN)) if folder.is_dir() else []:
        try:
            value = json.loads(gzip.decompress(path.read_bytes()))
            if value["schema"] != SCHEMA:
                refused.append((90, f"{path}: schema {value['schema']}, this version reads {SCHEMA}"))
                continue
            recorded = Fingerprint.from_json(value["fingerprint"])
            differences = recorded.differences(fingerprint, from_build=from_build)
            if not differences:
                return _stored(value, recorded, prompts)
        except (OSError, EOFError, ValueError, KeyError, TypeError, AttributeError) as error:
            refused.append((99, f"{path}: cannot be read: {type(error).__name__}: {error}"))
            continue
        refused.append((len(differences), f"{path}: {'; '.join(map(str, differences))}"))
    if not refused:
        return None
    closest = min(refused)[1]
    more = f" ({len(refused) - 1} further files fit no better)" if len(refused) > 1 else ""
    raise RecordsRefused(
        f"the baseline records do not belong to this run: {closest}{more}. Record them anew by removing the "
        "file, or, to judge a patched build by another build's records, name that build with "
        "--ddtree-records-from-build"
    )


def _slug(text: str) -> str:
    return "".join(letter if letter.isalnum() else "-" for letter in text)[:40].strip("-") or "build"


def _answer_json(prompt: Prompt, answers: BaselineAnswers) -> dict[str, Any]:
    record = answers.records[prompt.tag]
    return {
        "tag": prompt.tag,
        "output_ids": list(record.output_ids),
        "text": record.text,
        "finish_reason": dict(record.finish_reason) if record.finish_reason is not None else None,
        "usage": {
            name: record.meta[name]
            for name in ("prompt_tokens", "completion_tokens", "cached_tokens")
            if name in record.meta
        },
        "max_new_tokens": record.request.sampling.max_new_tokens,
        "ignore_eos": record.request.sampling.ignore_eos,
        "scores": [
            [score.token_id, score.logprob, [[token_id, logprob] for token_id, logprob in score.top]]
            for score in answers.scores[prompt.tag]
        ],
    }


def _stored(value: Mapping[str, Any], fingerprint: Fingerprint, prompts: Sequence[Prompt]) -> StoredBaseline:
    by_tag = {answer["tag"]: answer for answer in value["answers"]}
    records: dict[str, Record] = {}
    scores: dict[str, tuple[TokenScore, ...]] = {}
    for prompt in prompts:
        answer = by_tag[prompt.tag]
        sampling = Sampling(max_new_tokens=answer["max_new_tokens"], ignore_eos=answer["ignore_eos"])
        records[prompt.tag] = Record(
            request=Request(sampling=sampling, input_ids=prompt.ids, tag=prompt.tag),
            outcome="ok",
            sent_ns=0,
            end_ns=0,
            output_ids=tuple(answer["output_ids"]),
            text=answer["text"],
            finish_reason=answer["finish_reason"],
            meta=answer["usage"],
            http_status=200,
        )
        scores[prompt.tag] = tuple(
            TokenScore(
                position=len(prompt.ids) + index,
                token_id=int(token_id),
                logprob=float(logprob),
                top=tuple((int(best), float(its)) for best, its in top),
            )
            for index, (token_id, logprob, top) in enumerate(answer["scores"])
        )
    return StoredBaseline(
        fingerprint=fingerprint,
        answers=BaselineAnswers(records=records, scores=scores),
        floor=NoiseFloor.from_json(value["floor"]),
        made=str(value["made"]),
    )
