"""Prompts of an exact number of tokens: chat template + document + question, padded inside the document."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from pytest_ddtree.workload.template import ChatTemplate, load_template
from pytest_ddtree.workload.texts import Workload, shipped


class Tokenizer(Protocol):
    """Text to token ids; added tokens such as chat markers are recognised in the text."""

    def encode(self, text: str) -> list[int]: ...

    def decode(self, ids: Sequence[int], *, special: bool = True) -> str: ...

    def prefix(self) -> list[int]:
        """What the tokenizer itself puts before every sequence (a BOS token, or nothing)."""
        ...


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt as token ids; `tag` names it for people, `repeats` says that its text had to be used twice."""

    ids: tuple[int, ...]
    tag: str
    repeats: bool = False


class PromptMaker:
    """Makes the prompts of one workload class for one model, the same ones for the same seed.

    Every prompt starts (after the template) with a line of its own, so that no two share more of a prefix
    than the template: a prefix cache cannot serve one with the other.
    """

    def __init__(
        self,
        model: Path,
        *,
        workload: str | Workload = "code",
        seed: int = 0,
        questions: Sequence[str] | None = None,
        thinking: bool | None = None,
        tokenizer: Tokenizer | None = None,
    ) -> None:
        """`model` is a directory with `tokenizer.json`; `questions` replace those of the workload class."""
        self._workload = shipped(workload) if isinstance(workload, str) else workload
        self._questions = tuple(questions) if questions else self._workload.questions
        self._seed = seed
        self._tokenizer = tokenizer or load_tokenizer(model)
        self._template: ChatTemplate = load_template(model, thinking=thinking)
        self._units: list[list[list[int]]] | None = None
        self._frames: dict[str, tuple[list[int], list[int]]] = {}

    @property
    def minimum(self) -> int:
        """The fewest tokens of a prompt: template, shortest question, a document of one token."""
        return 1 + min(map(self._framing, self._questions))

    def fits(self, tokens: int) -> bool:
        """Whether there are prompts of so many tokens. Looks no further than the first question that is short enough."""
        return any(self._framing(question) < tokens for question in self._questions)

    def make(self, tokens: int, index: int, *, purpose: str = "measure") -> Prompt:
        """Prompt number `index` of `tokens` tokens; prompts of another `purpose` (warm-up) are others.

        Raises ValueError when the template and the shortest question alone are as long.
        """
        rng = random.Random(f"{self._seed}/{self._workload.name}/{purpose}/{tokens}/{index}")
        frame = self._pick(tokens, index)
        head, tail = frame
        room = tokens - len(head) - len(tail)
        opening = self._tokenizer.encode(
            f"# {rng.getrandbits(32):08x} {self._workload.name} {purpose} {index}\n\n"
        )
        document = opening[:room]
        passes = 0
        for pass_no, unit in self._walk(rng):
            if len(document) >= room:
                break
            passes = pass_no
            document += unit
        ids = (*head, *document[:room], *tail)
        return Prompt(ids, f"{self._workload.name}-{purpose}-{tokens}-{index}", repeats=passes > 0)

    def chat_ids(self, message: str) -> tuple[int, ...]:
        """The ids of a chat prompt with this user message alone, up to where the answer starts."""
        start = [] if self._template.source else self._tokenizer.prefix()
        return (*start, *self._tokenizer.encode(self._template.prompt(message)))

    def text_ids(self, text: str) -> tuple[int, ...]:
        """The ids of plain text as a server takes it, its beginning-of-text token first where the tokenizer has one."""
        return (*self._tokenizer.prefix(), *self._tokenizer.encode(text))

    def decode_plain(self, ids: Sequence[int]) -> str:
        """The text of token ids as a server sends it: special tokens left out."""
        return self._tokenizer.decode(ids, special=False)

    def opens_thinking(self, message: str) -> bool:
        """Whether the chat prompt itself ends inside a thinking section, so that an answer begins within it."""
        prompt = self._template.prompt(message)
        return prompt.rfind("<think>") > prompt.rfind("</think>")

    def decode(self, ids: Sequence[int]) -> str:
        """The text of token ids, special tokens included: for people."""
        return self._tokenizer.decode(ids)

    def make_many(
        self, tokens: int, count: int, *, first: int = 0, purpose: str = "measure"
    ) -> tuple[Prompt, ...]:
        """Prompts first .. first + count - 1."""
        return tuple(self.make(tokens, first + number, purpose=purpose) for number in range(count))

    def _pick(self, tokens: int, index: int) -> tuple[list[int], list[int]]:
        """The frame of question number `index`, or of the next one that is short enough."""
        for step in range(len(self._questions)):
            question = self._questions[(index + step) % len(self._questions)]
            if self._framing(question) < tokens:
                return self._frame(question)
        raise ValueError(
            f"a prompt of {tokens} tokens is too short for workload {self._workload.name!r}: "
            f"its template and shortest question need {self.minimum}"
        )

    def _framing(self, question: str) -> int:
        """Tokens of template and question."""
        head, tail = self._frame(question)
        return len(head) + len(tail)

    def _frame(self, question: str) -> tuple[list[int], list[int]]:
        if question not in self._frames:
            frame = self._template.frame(question)
            encode = self._tokenizer.encode
            start = [] if self._template.source else self._tokenizer.prefix()
            self._frames[question] = (start + encode(frame.head), encode(frame.tail))
        return self._frames[question]

    def _walk(self, rng: random.Random) -> Iterator[tuple[int, list[int]]]:
        """Units of all texts, without end: each once in pass 0, then all of them again in pass 1, 2, ...

        Neighbours in a text stay neighbours; the order of the texts and where each starts are drawn.
        """
        if self._units is None:
            encode = self._tokenizer.encode
            self._units = [[encode(unit + "\n\n") for unit in text.units] for text in self._workload.texts]
        pass_no = 0
        while True:
            order = [text for text in self._units if text]
            rng.shuffle(order)
            starts = [rng.randrange(len(text)) for text in order]
            for text, start in zip(order, starts, strict=True):
                yield from ((pass_no, unit) for unit in text[start:])
            for text, start in zip(order, starts, strict=True):
                yield from ((pass_no, unit) for unit in text[:start])
            pass_no += 1


class _JsonTokenizer:
    def __init__(self, path: Path) -> None:
        try:
            from tokenizers import Tokenizer as Native
        except ImportError as error:
            raise ValueError("prompts of an exact length need: pip install tokenizers") from error
        try:
            self._native = Native.from_file(str(path))
        except Exception as error:  # The library raises nothing more special.
            raise ValueError(f"{path} is no tokenizer: {error}") from error
        self._native.no_truncation()
        self._native.no_padding()

    def encode(self, text: str) -> list[int]:
        return list(self._native.encode(text, add_special_tokens=False).ids)

    def decode(self, ids: Sequence[int], *, special: bool = True) -> str:
        return str(self._native.decode(list(ids), skip_special_tokens=not special))

    def prefix(self) -> list[int]:
        whole = list(self._native.encode("a").ids)
        own = self.encode("a")
        at = next((i for i in range(len(whole)) if whole[i : i + len(own)] == own), 0)
        return whole[:at]


def load_tokenizer(model: Path) -> Tokenizer:
    """The tokenizer of a model directory, or of a `tokenizer.json` itself; ValueError where there is none."""
    path = model if model.is_file() else model / "tokenizer.json"
    if not path.is_file():
        raise ValueError(
            f"no tokenizer.json at {path}: prompts of an exact length need the model's tokenizer"
        )
    return _JsonTokenizer(path)
