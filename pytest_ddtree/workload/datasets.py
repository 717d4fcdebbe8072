"""Prompts out of the user's own files: ShareGPT, SPEED-Bench, plain JSONL, plain text."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

_TEXT_KEYS = ("prompt", "question", "instruction", "input", "text")
_TURN_KEYS = ("turns", "conversations", "conversation", "messages")


def load_questions(path: Path) -> tuple[str, ...]:
    """What a user asks first in every entry of a file, without repeats, in its order.

    `.txt`: questions separated by blank lines. `.json`: a list (ShareGPT). Else one JSON value a line: a text, or an
    object with a text under prompt, question, instruction, input or text, or with turns (SPEED-Bench), conversations
    (ShareGPT) or messages. Conversations in which no user says a text, of which ShareGPT's own files have many, are
    passed over. Raises ValueError that lists every unreadable entry (at most ten).
    """
    if path.suffix == ".txt":
        blocks = path.read_text("utf-8").split("\n\n")
        return _unique([block.strip() for block in blocks if block.strip()], path)
    found: list[str] = []
    problems: list[str] = []
    for where, raw in _entries(path):
        try:
            question = _first_question(json.loads(raw) if isinstance(raw, str) else raw)
        except ValueError as error:
            problems.append(f"{where}: {error}")
        else:
            found += [question] if question else []
    if problems:
        shown = "\n  ".join(problems[:10])
        more = f"\n  and {len(problems) - 10} more" if len(problems) > 10 else ""
        raise ValueError(f"{path} has {len(problems)} entries that are no prompt:\n  {shown}{more}")
    return _unique(found, path)


def _entries(path: Path) -> Iterator[tuple[str, Any]]:
    text = path.read_text("utf-8")
    if path.suffix == ".json":
        try:
            values = json.loads(text)
        except ValueError as error:
            raise ValueError(f"{path} is no JSON: {error}") from error
        if not isinstance(values, list):
            raise ValueError(f"{path} holds a {type(values).__name__}, not a list")
        yield from ((f"entry {number}", value) for number, value in enumerate(values, 1))
        return
    # Not splitlines: a JSON text may hold U+2028 and other characters that it takes for the end of a line.
    yield from ((f"line {number}", line) for number, line in enumerate(text.split("\n"), 1) if line.strip())


def _first_question(value: Any) -> str | None:
    if isinstance(value, str) and value.strip():
        return value.strip()
    if not isinstance(value, Mapping):
        raise ValueError(f"a {type(value).__name__} is no prompt")
    for key in _TEXT_KEYS:
        text = value.get(key)
        if isinstance(text, str) and text.strip():
            return text.strip()
    conversations = [turns for key in _TURN_KEYS if isinstance(turns := value.get(key), list)]
    for turns in conversations:
        for turn in turns:
            text = _said_by_user(turn)
            if text:
                return text
    if conversations:
        return None
    raise ValueError(f"none of the keys {', '.join((*_TEXT_KEYS, *_TURN_KEYS))} holds a text")


def _said_by_user(turn: Any) -> str | None:
    if isinstance(turn, str):
        return turn.strip()
    if not isinstance(turn, Mapping) or turn.get("from", turn.get("role")) not in ("human", "user"):
        return None
    text = turn.get("value", turn.get("content"))
    if isinstance(text, list):
        # OpenAI's content parts.
        text = "\n".join(
            part["text"] for part in text if isinstance(part, Mapping) and isinstance(part.get("text"), str)
        )
    return text.strip() if isinstance(text, str) else None


def _unique(found: list[str], path: Path) -> tuple[str, ...]:
    if not found:
        raise ValueError(f"{path} holds no prompt")
    return tuple(dict.fromkeys(found))
