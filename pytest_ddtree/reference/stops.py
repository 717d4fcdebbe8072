"""When an answer ends: inside a run of accepted tokens too, at the first token that ends it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from .sampling import SamplingParams
from .tokenizer import Detokenizer, Tokenizer


@dataclass(frozen=True, slots=True)
class Finish:
    """Why an answer ended: kind ``stop`` with what matched, ``length``, or ``abort`` with a message."""

    kind: Literal["stop", "length", "abort"]
    matched: int | str | None = None
    message: str = ""
    status_code: int | None = None

    def as_meta(self, completion_tokens: int) -> dict[str, object]:
        """``meta_info.finish_reason`` in SGLang's shape."""
        if self.kind == "length":
            return {"type": "length", "length": completion_tokens}
        if self.kind == "abort":
            meta: dict[str, object] = {"type": "abort", "message": self.message or "Aborted"}
            if self.status_code is not None:
                meta |= {"status_code": self.status_code, "err_type": None}
            return meta
        return {"type": "stop", "matched": self.matched}


class StopChecker:
    """Watches one answer as SGLang does: the length first, then ids, which ``ignore_eos`` switches off, then the text.

    ``min_new_tokens`` bars ids alone; a stop string ends the answer before, too.
    """

    def __init__(self, params: SamplingParams, eos_ids: Sequence[int], tokenizer: Tokenizer | None) -> None:
        self._params = params
        self._stop_ids = frozenset() if params.ignore_eos else frozenset(params.stop_token_ids)
        self._eos_ids = frozenset() if params.ignore_eos else frozenset(eos_ids)
        self._count = 0
        self._strings = params.stop
        self._detokenizer: Detokenizer | None = None
        if params.stop:
            if tokenizer is None:
                raise ValueError("stop strings need a tokenizer")
            self._detokenizer = Detokenizer(tokenizer, skip_special_tokens=params.skip_special_tokens)
            self._tail_length = max(map(len, params.stop)) - 1
        self._tail = ""

    @property
    def ending_ids(self) -> frozenset[int]:
        """Ids that end the answer; they are barred until ``min_new_tokens`` is reached."""
        return self._stop_ids | self._eos_ids

    def push(self, token: int) -> Finish | None:
        """Take one emitted token; a Finish when the answer ends with it."""
        self._count += 1
        if self._count >= self._params.max_new_tokens:
            return Finish("length")
        early = self._count <= self._params.min_new_tokens
        if not early and (token in self._stop_ids or token in self._eos_ids):
            return Finish("stop", token)
        if self._detokenizer is not None:
            self._tail += self._detokenizer.push([token])
            for string in self._strings:
                if string in self._tail:
                    return Finish("stop", string)
            self._tail = self._tail[-self._tail_length :] if self._tail_length else ""
        return None


def visible_text(text: str, strings: Sequence[str], finish: Finish | None, *, trim: bool) -> str:
    """What of ``text`` may be shown: cut at the stop string that ended it, and while unfinished without a possible start of one.

    An answer that ended otherwise is whole, as in SGLang: its last token may complete a stop string too.
    """
    if finish is not None:
        if not isinstance(finish.matched, str) or finish.matched not in text:
            return text
        at = text.find(finish.matched)
        return text[: at if trim else at + len(finish.matched)]
    hold = 0
    for string in strings:
        for length in range(min(len(string) - 1, len(text)), hold, -1):
            if text.endswith(string[:length]):
                hold = length
                break
    return text[: len(text) - hold]
