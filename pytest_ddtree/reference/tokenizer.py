"""The checkpoint's tokenizer and incremental detokenisation."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as HFTokenizer

from .checkpoint import CheckpointError

UNFINISHED = "\ufffd"
"""What an incomplete UTF-8 sequence decodes to."""


class Tokenizer:
    """``tokenizer.json`` of a checkpoint directory and, where there is one, its chat template."""

    def __init__(self, path: Path) -> None:
        """Raises CheckpointError for a directory without a tokenizer, and for files that are none."""
        file = path / "tokenizer.json"
        if not file.is_file():
            raise CheckpointError(f"{path} is no checkpoint: it has no tokenizer.json")
        try:
            self._tokenizer = HFTokenizer.from_file(str(file))
        except Exception as error:  # The library raises nothing more special.
            raise CheckpointError(f"{file} cannot be read: {error}") from None
        self.chat_template = _chat_template(path)

    def encode(self, text: str) -> list[int]:
        return list(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=skip_special_tokens))

    def token_id(self, token: str) -> int | None:
        found = self._tokenizer.token_to_id(token)
        return None if found is None else int(found)

    def token_text(self, token: int) -> str:
        return self.decode([token], skip_special_tokens=False)


def _chat_template(path: Path) -> str | None:
    separate = path / "chat_template.jinja"
    if separate.is_file():
        return separate.read_text(encoding="utf-8")
    config = path / "tokenizer_config.json"
    if not config.is_file():
        return None
    try:
        data: Any = json.loads(config.read_text(encoding="utf-8"))
    except ValueError as error:
        raise CheckpointError(f"{config} is not valid JSON: {error}") from None
    template = data.get("chat_template") if isinstance(data, dict) else None
    return template if isinstance(template, str) else None


class Detokenizer:
    """Text of a growing list of token ids; characters are held back until they are complete.

    Decoding starts at a token border a little before the new ids, because a byte-level token may hold a part of a
    character and a decoder may treat the first token of a text differently.
    """

    def __init__(self, tokenizer: Tokenizer, *, skip_special_tokens: bool = True) -> None:
        self._tokenizer = tokenizer
        self._skip = skip_special_tokens
        self._ids: list[int] = []
        self._prefix = 0
        self._read = 0
        self.text = ""

    def push(self, ids: Sequence[int]) -> str:
        """Add ids and return the text that became certain."""
        self._ids.extend(ids)
        before, now = self._decode(self._prefix, self._read), self._decode(self._prefix, len(self._ids))
        if len(now) <= len(before) or now.endswith(UNFINISHED):
            return ""
        fresh = now[len(before) :]
        self._prefix, self._read = self._read, len(self._ids)
        self.text += fresh
        return fresh

    def finish(self) -> str:
        """The text held back, incomplete characters included."""
        before, now = self._decode(self._prefix, self._read), self._decode(self._prefix, len(self._ids))
        fresh = now[len(before) :]
        self._prefix = self._read = len(self._ids)
        self.text += fresh
        return fresh

    def _decode(self, begin: int, end: int) -> str:
        if begin == end:
            return ""
        return self._tokenizer.decode(self._ids[begin:end], skip_special_tokens=self._skip)
