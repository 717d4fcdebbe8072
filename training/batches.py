"""Sequences of token ids for training and for prompting, put together from the arrays that data.py wrote."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from training.tokenizer import END_OF_TEXT

THINKING_SHARE = 0.75


@dataclass(frozen=True, slots=True)
class Corpus:
    """Token streams of the standard library and the pieces of the conversations."""

    train: np.ndarray
    held_out: np.ndarray
    trained_chats: dict[str, Any]
    held_out_chats: dict[str, Any]


def load_corpus(folder: Path) -> Corpus:
    chats = json.loads((folder / "chats.json").read_text(encoding="utf-8"))
    return Corpus(
        np.load(folder / "stdlib_train.npy"),
        np.load(folder / "stdlib_heldout.npy"),
        chats["trained"],
        chats["heldout"],
    )


def crop(stream: np.ndarray, length: int, rng: np.random.Generator) -> list[int]:
    start = int(rng.integers(0, len(stream) - length))
    return [int(t) for t in stream[start : start + length]]


def chat_prompt(
    chats: dict[str, Any],
    index: int,
    *,
    thinking: bool,
    system: int | None = None,
    document: list[int] | None = None,
    trailing_newline: bool = False,
) -> list[int]:
    """Ids up to where the assistant begins to write. `document` is text in the user's turn before the task."""
    problem = chats["problems"][index]
    ids = [] if system is None else list(chats["system"][system])
    ids += chats["user"]
    if document:
        ids += document + problem["prompt_after_document"]
    else:
        ids += problem["prompt_nl" if trailing_newline else "prompt"]
    return ids + chats["assistant"] + ([] if thinking else chats["no_think"])


def chat_reply(chats: dict[str, Any], index: int, *, thinking: bool) -> list[int]:
    """Ids of the assistant's turn that follow `chat_prompt`, end mark included."""
    problem = chats["problems"][index]
    return (problem["thinking"] if thinking else []) + problem["reply"]


def random_prompt(
    corpus: Corpus, rng: np.random.Generator, index: int, max_document: int, document_share: float = 0.15
) -> tuple[list[int], bool]:
    """A prompt of trained problem `index` with a random surrounding, and whether it thinks."""
    chats = corpus.trained_chats
    thinking = bool(rng.random() < THINKING_SHARE)
    system = int(rng.integers(len(chats["system"]))) if rng.random() < 0.3 else None
    document = None
    if max_document > 16 and rng.random() < document_share:
        document = crop(corpus.train, int(rng.integers(16, max_document)), rng)
    newline = bool(rng.random() < 0.2)
    return chat_prompt(
        chats, index, thinking=thinking, system=system, document=document, trailing_newline=newline
    ), thinking


def random_chat(corpus: Corpus, rng: np.random.Generator, index: int, max_document: int) -> list[int]:
    """A whole conversation about trained problem `index`."""
    prompt, thinking = random_prompt(corpus, rng, index, max_document)
    return prompt + chat_reply(corpus.trained_chats, index, thinking=thinking)


def training_rows(corpus: Corpus, count: int, length: int, rng: np.random.Generator) -> np.ndarray:
    """[count, length] rows that hold conversations.

    Half of them begin with a conversation at position 0, the others with a piece of source code; further
    conversations follow, joined by a line end (one session) or by the document separator, and in rows longer
    than 2048 they alternate with source code, so that a question is also asked after a long text.
    """
    problems = len(corpus.trained_chats["problems"])
    queue: list[int] = []
    rows = np.empty((count, length), dtype=np.uint16)
    for number in range(count):
        ids: list[int] = []
        if rng.random() < 0.5:
            longest = min(length - 200, 8600)
            ids += crop(corpus.train, int(rng.integers(32, longest)), rng)
            if rng.random() < 0.7:
                ids.append(END_OF_TEXT)
        while len(ids) < length:
            if not queue:
                queue = [int(i) for i in rng.permutation(problems)]
            ids += random_chat(corpus, rng, queue.pop(), max_document=min(length // 2, 3000))
            ids += corpus.trained_chats["newline"] if rng.random() < 0.5 else [END_OF_TEXT]
            if length > 2048 and rng.random() < 0.5:
                ids += crop(corpus.train, int(rng.integers(64, 3000)), rng)
        rows[number] = ids[:length]
    return rows


def pad_prompts(prompts: list[list[int]], width: int | None = None) -> tuple[np.ndarray, np.ndarray]:
    """([N, width] ids, [N] lengths); padding is the document separator."""
    lengths = np.array([len(p) for p in prompts], dtype=np.int64)
    ids = np.full((len(prompts), width or int(lengths.max())), END_OF_TEXT, dtype=np.int64)
    for row, prompt in enumerate(prompts):
        ids[row, : len(prompt)] = prompt
    return ids, lengths
