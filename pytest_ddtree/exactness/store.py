"""Baseline records on disk, with the fingerprint that says what they may be compared with.

JSON Lines: a head with fingerprint and floor, then one line an answer, each with a digest of its own, so that whatever broke a file
can be said with its line.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pytest_ddtree.client.records import Record, Request, Sampling, TokenScore
from pytest_ddtree.errors import Infrastructure, writing
from pytest_ddtree.exactness.fingerprint import Fingerprint
from pytest_ddtree.exactness.floor import NoiseFloor
from pytest_ddtree.exactness.prompts import BaselineAnswers, Prompt

SCHEMA = 3
SHORTEST_REVISION = 7
_PATTERN = "baseline-*.jsonl"


class RecordsRefused(Infrastructure):
    """Stored baseline records do not belong to this run; the text names every field that differs."""


class _Broken(Exception):
    """A file of records that is not whole; the text says at which line and how."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredBaseline:
    """Baseline answers with the floor measured along with them."""

    fingerprint: Fingerprint
    answers: BaselineAnswers
    floor: NoiseFloor
    float32: bool
    """Whether the baseline computed in float32."""
    made: str
    """When, ISO 8601, UTC."""
    path: Path


def save_records(
    folder: Path,
    fingerprint: Fingerprint,
    prompts: Sequence[Prompt],
    answers: BaselineAnswers,
    floor: NoiseFloor,
    *,
    float32: bool = False,
    name: str | None = None,
    now: datetime | None = None,
) -> Path:
    """Write the records of these prompts into `folder`, replacing older ones of the same build and prompts.

    `name` is what the user calls the build (`base`), if anything. The file appears whole or not at all.
    Raises OSError where the folder cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    head = {
        "schema": SCHEMA,
        "made": (now or datetime.now(UTC)).isoformat(timespec="seconds"),
        "fingerprint": fingerprint.as_json(),
        "name": name,
        "float32": float32,
        "floor": floor.as_json(),
        "answers": len(prompts),
    }
    lines = [_sealed(value) for value in (head, *(_answer_json(prompt, answers) for prompt in prompts))]
    path = folder / f"baseline-{fingerprint.prompts}-{_slug(fingerprint.build)}.jsonl"
    handle, name = tempfile.mkstemp(dir=folder, suffix=".part")
    try:
        with writing(path), os.fdopen(handle, "w", encoding="utf-8") as file:
            file.writelines(lines)
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
            of the one here; then having none at all is refused too.
    """
    refused: list[tuple[float, str]] = []
    for path in sorted(folder.glob(_PATTERN)) if folder.is_dir() else []:
        try:
            head, lines = _open(path)
            recorded = Fingerprint.from_json(head["fingerprint"])
            named = from_build is not None and _is_called(from_build, recorded.build, head.get("name"))
            differences = recorded.differences(
                fingerprint, from_build=recorded.build if named else from_build
            )
            if not differences:
                return _stored(path, head, recorded, _answers(path, head, lines), prompts)
        except _Broken as error:
            refused.append((math.inf, str(error)))
            continue
        except (OSError, KeyError, TypeError, ValueError) as error:
            refused.append((math.inf, f"{path}, line 1: {type(error).__name__}: {error}"))
            continue
        refused.append((len(differences), f"{path}: {'; '.join(map(str, differences))}"))
    if not refused:
        if from_build is not None:
            raise RecordsRefused(
                f"there are no baseline records in {folder}, so none of build {from_build!r} either: record them "
                "on that build first (--ddtree-records without --ddtree-records-from-build)"
            )
        return None
    differing, closest = min(refused)
    more = f" ({len(refused) - 1} further files fit no better)" if len(refused) > 1 else ""
    if math.isinf(differing):
        raise RecordsRefused(
            f"the baseline records cannot be read: {closest}{more}. Remove the file: the next run records the baseline anew. "
            "Or put back a whole copy of it"
        )
    raise RecordsRefused(
        f"the baseline records do not belong to this run: {closest}{more}. Record them anew by removing the "
        "file, or, to judge a patched build by another build's records, name that build with "
        "--ddtree-records-from-build"
    )


def _is_called(wanted: str, label: str, name: object) -> bool:
    """Whether a build is meant: by its label, by the name it was recorded under, or by the start of its revision."""
    return wanted in (label, name) or (len(wanted) >= SHORTEST_REVISION and label.startswith(wanted))


def _slug(text: str) -> str:
    return "".join(letter if letter.isalnum() else "-" for letter in text)[:40].strip("-") or "build"


def _digest(value: Mapping[str, Any]) -> str:
    text = json.dumps(value, separators=(",", ":"), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _sealed(value: Mapping[str, Any]) -> str:
    """One line with the digest of its content."""
    return json.dumps({**value, "digest": _digest(value)}, separators=(",", ":")) + "\n"


def _open(path: Path) -> tuple[dict[str, Any], list[str]]:
    """The head of a file and all its lines. Raises _Broken, OSError."""
    lines = path.read_text("utf-8", errors="replace").splitlines(keepends=True)
    head = _unsealed(path, lines, 1)
    if head.get("schema") != SCHEMA:
        raise _Broken(f"{path}, line 1: schema {head.get('schema')}, this version reads {SCHEMA}")
    return head, lines


def _unsealed(path: Path, lines: Sequence[str], number: int) -> dict[str, Any]:
    """The content of line `number`, from 1. Raises _Broken when it is missing, half-written or edited."""
    where = f"{path}, line {number}"
    if number > len(lines):
        raise _Broken(f"{where}: missing, the file ends after {len(lines)} lines: it was cut off")
    line = lines[number - 1]
    try:
        value = json.loads(line)
    except ValueError as error:
        half = "half-written" if not line.endswith("\n") else "no JSON"
        raise _Broken(f"{where}: {half}: {error}") from None
    if not isinstance(value, dict) or "digest" not in value:
        raise _Broken(f"{where}: no record of a baseline: it has no digest")
    said = value.pop("digest")
    if said != _digest(value):
        raise _Broken(
            f"{where}: edited: its content does not have the digest {said} that it was written with"
        )
    return value


def _answers(path: Path, head: Mapping[str, Any], lines: Sequence[str]) -> list[dict[str, Any]]:
    count = int(head["answers"])
    if len(lines) > count + 1:
        raise _Broken(f"{path}, line {count + 2}: more lines than the {count} answers that line 1 announces")
    return [_unsealed(path, lines, number) for number in range(2, count + 2)]


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


def _stored(
    path: Path,
    head: Mapping[str, Any],
    fingerprint: Fingerprint,
    answers: Sequence[Mapping[str, Any]],
    prompts: Sequence[Prompt],
) -> StoredBaseline:
    by_tag = {answer["tag"]: answer for answer in answers}
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
        floor=NoiseFloor.from_json(head["floor"]),
        float32=bool(head["float32"]),
        made=str(head["made"]),
        path=path,
    )
