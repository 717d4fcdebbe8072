"""Values that `extract` returns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, Literal, TypeAlias, get_args

Status: TypeAlias = Literal[
    "ok",
    "no_code",
    "unclosed_thinking",
    "answer_in_reasoning",
    "truncated",
    "truncated_block",
    "syntax_error",
    "no_entry_point",
    "refusal",
    "empty",
]
Role: TypeAlias = Literal["answer", "helper", "unused"]
Span: TypeAlias = tuple[int, int]

STATUSES: Final[tuple[Status, ...]] = get_args(Status)

#: One sentence a status, for reports.
STATUS_TEXT: Final[Mapping[Status, str]] = MappingProxyType(
    {
        "ok": "a final answer was found",
        "no_code": "the answer holds no Python code",
        "unclosed_thinking": "the thinking section never ended, so there is no final answer",
        "answer_in_reasoning": "the answer is empty and the code stands in the reasoning",
        "truncated": "generation stopped at its length limit before the answer was complete",
        "truncated_block": "the last code block was opened, never closed, and is incomplete",
        "syntax_error": "the code of the answer is not valid Python",
        "no_entry_point": "the code of the answer does not define what was asked for",
        "refusal": "the model declined to answer",
        "empty": "the answer is empty",
    }
)


@dataclass(frozen=True, slots=True)
class Block:
    """One piece of code found in the answer (never in the thinking).

    `span` is the half-open character range of the code in the response. `language` is the tag as
    written, lower case, "" for none. `closed` is False where the text ended inside the block.
    """

    span: Span
    language: str
    kind: Literal["fence", "inline", "tag", "raw"]
    closed: bool
    role: Role = "unused"


@dataclass(frozen=True, slots=True)
class Extraction:
    """The final answer of one response, or the reason why there is none.

    `code` is the program to run (None unless `status` is "ok"): newlines are ``\\n`` and it ends with
    exactly one. `span` is the character range of the answer's own block in the response; without an
    answer it is the block that came nearest, or None. `blocks` are all pieces of code of the answer in
    order of appearance; those that went into `code` have the role "answer" or "helper".
    """

    code: str | None
    status: Status
    span: Span | None
    blocks: tuple[Block, ...]
    finish_reason: str | None = None

    @property
    def ok(self) -> bool:
        """True where there is an answer to run."""
        return self.status == "ok"

    @property
    def reason(self) -> str:
        """One sentence that says what `status` means."""
        return STATUS_TEXT[self.status]

    @property
    def used(self) -> tuple[int, ...]:
        """Indexes into `blocks` of the pieces that `code` was made from."""
        return tuple(i for i, block in enumerate(self.blocks) if block.role != "unused")
