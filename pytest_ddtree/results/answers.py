"""Answers to coding problems, each appended and fsynced as it comes, so that an interrupted eval asks nobody twice."""

from __future__ import annotations

import base64
import hashlib
import json
import zlib
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pytest_ddtree.client.records import Record, Request, Sampling, TokenScore
from pytest_ddtree.results.secrets import scrub
from pytest_ddtree.results.store import Store, StoreCorrupt

FILE = "answers.jsonl"
KIND = "answer"
_ANYTHING = Request(sampling=Sampling(max_new_tokens=1), input_ids=(1,))


@dataclass(frozen=True, slots=True)
class Answer:
    """What a server answered, and of a baseline its scores at every emitted position (else none)."""

    record: Record
    scores: tuple[TokenScore, ...] = ()


class AnswerBook:
    """The answers of one run, in the file `answers.jsonl` of its folder; the file appears with the first of them."""

    def __init__(self, folder: Path, *, secrets: Sequence[str] = ()) -> None:
        """Raises StoreCorrupt, naming file and line, for a file that holds something else."""
        self._path = folder / FILE
        self._secrets = tuple(secrets)
        self._store: Store | None = Store(self._path) if self._path.exists() else None
        self._known: dict[tuple[str, str, int], Mapping[str, Any]] = {}
        for number, record in enumerate(self._store.records if self._store else [], start=1):
            try:
                key = (str(record["config"]), str(record["asked"]), int(record["number"]))
                from_json(record, _ANYTHING)
            except (KeyError, TypeError, ValueError, zlib.error) as error:
                raise StoreCorrupt(
                    f"{self._path}, line {number}: no answer that can be read ({type(error).__name__}: {error}). "
                    "The file was left as it is; move it away to have everything asked again."
                ) from None
            # The first answer counts, as the first measurement of a round does.
            self._known.setdefault(key, record)

    @property
    def torn(self) -> int:
        """Bytes of an unfinished last line that were cut off."""
        return 0 if self._store is None else self._store.torn

    def get(self, config: str, request: Request, number: int) -> Answer | None:
        """The answer of a config to this very request, the `number`-th time it was asked; None where there is none."""
        record = self._known.get((config, digest(request), number))
        return None if record is None else from_json(record, request)

    def keep(self, config: str, number: int, answer: Answer) -> None:
        """Write an answer and wait until the disk has it."""
        if self._store is None:
            self._store = Store(self._path)
        fields = as_json(answer)
        fields |= {name: scrub(fields[name], self._secrets) for name in ("text", "reasoning", "error")}
        self._store.append(KIND, config=config, asked=digest(answer.record.request), number=number, **fields)

    def close(self) -> None:
        """Close the file. May be called twice."""
        if self._store is not None:
            self._store.close()


def digest(request: Request) -> str:
    """What was asked, prompt and sampling, in 16 characters."""
    sampling = request.sampling
    asked = {name: getattr(sampling, name) for name in sampling.__dataclass_fields__}
    asked["extra"] = dict(sampling.extra)
    value = {"ids": request.input_ids, "text": request.text, "sampling": asked}
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()[:16]


def as_json(answer: Answer) -> dict[str, Any]:
    """An answer as plain values. Of what the server said beside it only plain numbers and words are kept, no times."""
    record = answer.record
    return {
        "tag": record.request.tag,
        "outcome": record.outcome,
        "output_ids": list(record.output_ids),
        "text": record.text,
        "reasoning": record.reasoning,
        "finish_reason": None if record.finish_reason is None else dict(record.finish_reason),
        "meta": {
            name: value
            for name, value in record.meta.items()
            if isinstance(value, int | float | str | None) and name != "id"
        },
        "http_status": record.http_status,
        "error": record.error,
        "scores": _packed(answer.scores),
    }


def from_json(value: Mapping[str, Any], request: Request) -> Answer:
    """The inverse of `as_json`; `request` is what was asked. Raises KeyError, TypeError, ValueError or zlib.error for what is none."""
    record = Record(
        request=request,
        outcome=value["outcome"],
        sent_ns=0,
        end_ns=0,
        output_ids=tuple(map(int, value["output_ids"])),
        text=str(value["text"]),
        reasoning=value["reasoning"],
        finish_reason=value["finish_reason"],
        meta=dict(value["meta"]),
        http_status=value["http_status"],
        error=value["error"],
    )
    return Answer(record, _unpacked(value["scores"]))


def _packed(scores: Sequence[TokenScore]) -> dict[str, Any] | None:
    """Twenty candidates at each of thousands of positions: as text they would be most of a run's folder."""
    if not scores:
        return None
    values = array("d", (v for one in scores for v in (one.logprob, *(logprob for _, logprob in one.top))))
    short = array("f", values)
    exact = array("d", short) == values
    return {
        "position": scores[0].position,
        "width": [len(one.top) for one in scores],
        "ids": _text(
            array("q", (v for one in scores for v in (one.token_id, *(token for token, _ in one.top))))
        ),
        "type": "f" if exact else "d",
        "logprobs": _text(short if exact else values),
    }


def _unpacked(packed: Mapping[str, Any] | None) -> tuple[TokenScore, ...]:
    if packed is None:
        return ()
    ids = array("q", _bytes(packed["ids"]))
    kind: Literal["f", "d"] = "f" if packed["type"] == "f" else "d"
    logprobs = array(kind, _bytes(packed["logprobs"]))
    widths = [int(width) for width in packed["width"]]
    if not len(ids) == len(logprobs) == sum(widths) + len(widths):
        raise ValueError(
            f"{len(ids)} ids and {len(logprobs)} logprobs for {sum(widths) + len(widths)} places"
        )
    scores, place = [], 0
    for offset, width in enumerate(widths):
        top = tuple(
            zip(ids[place + 1 : place + 1 + width], logprobs[place + 1 : place + 1 + width], strict=True)
        )
        scores.append(
            TokenScore(
                position=int(packed["position"]) + offset,
                token_id=ids[place],
                logprob=logprobs[place],
                top=top,
            )
        )
        place += 1 + width
    return tuple(scores)


def _text(values: array[Any]) -> str:
    return base64.b85encode(zlib.compress(values.tobytes(), 6)).decode("ascii")


def _bytes(text: str) -> bytes:
    return zlib.decompress(base64.b85decode(text))
