"""Objects of the OpenAI protocol, as SGLang fills them."""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from typing import Any

from ..reasoning import CLOSE, Piece, ReasoningSplitter
from ..request import LogprobResult, Update
from ..settings import EngineSettings
from ..stops import Finish
from ..tokenizer import Tokenizer
from .answer import AnswerText, speculation_meta
from .openai_input import OpenAIInput


class Choice:
    """One growing choice: its text, its thinking part, its counts."""

    def __init__(self, index: int, prompt_tokens: int, parsed: OpenAIInput, tokenizer: Tokenizer) -> None:
        self.index = index
        self.prompt_tokens = prompt_tokens
        self.completion_tokens = 0
        self.cached_tokens = 0
        self.reasoning_tokens = 0
        self.finish: Finish | None = None
        self.last: Update | None = None
        self.logprobs = LogprobResult()
        self.fresh_logprobs = LogprobResult()
        self._echoes = parsed.echo is not None
        self.reasoning = ""
        self.content = ""
        self._tokenizer = tokenizer
        self._text = AnswerText(tokenizer, parsed.params)
        self._splitter: ReasoningSplitter | None = None
        self._thinking = False
        if parsed.parser is not None:
            self._splitter = ReasoningSplitter(parsed.parser, thinking_off=parsed.thinking_off)
            self._thinking = not parsed.thinking_off
        self._close_id = tokenizer.token_id(CLOSE)

    def push(self, update: Update) -> Piece:
        """Take an update; returns the text that became certain."""
        self.last = update
        self.completion_tokens = update.completion_tokens
        self.cached_tokens = update.cached_tokens
        self.finish = update.finish
        fresh = self._text.push(update.tokens, update.finish)
        if update.logprobs is not None:
            self.fresh_logprobs = update.logprobs
            self.logprobs.input_tokens.extend(update.logprobs.input_tokens)
            self.logprobs.input_top.extend(update.logprobs.input_top)
            self.logprobs.output_tokens.extend(update.logprobs.output_tokens)
            self.logprobs.output_top.extend(update.logprobs.output_top)
        if self._splitter is None:
            piece = Piece("", fresh)
        else:
            piece = self._splitter.push(fresh, last=update.finish is not None)
            self._count_thinking(update.tokens)
        self.reasoning += piece.reasoning
        self.content += piece.content
        return piece

    def _count_thinking(self, tokens: Sequence[int]) -> None:
        for token in tokens:
            if not self._thinking:
                return
            self.reasoning_tokens += 1
            if token == self._close_id:
                self._thinking = False

    def ending(self) -> dict[str, Any]:
        """finish_reason and matched_stop of a choice."""
        if self.finish is None:
            return {"finish_reason": None, "matched_stop": None}
        return {"finish_reason": self.finish.kind, "matched_stop": self.finish.matched}

    def completion_logprobs(self, result: LogprobResult) -> dict[str, Any]:
        """The older protocol's parallel lists, the prompt's tokens first where they are echoed."""
        text = self._tokenizer.token_text
        tokens, top = list(result.output_tokens), list(result.output_top)
        if self._echoes:
            tokens, top = result.input_tokens + tokens, result.input_top + top
        return {
            "text_offset": [-1] * len(tokens),
            "token_logprobs": [value for value, _ in tokens],
            "tokens": [text(token) for _, token in tokens],
            "top_logprobs": [
                {text(token): value for value, token in row} if row is not None else None for row in top
            ],
        }

    def chat_logprobs(self, result: LogprobResult) -> dict[str, Any]:
        rows = result.output_top or [None] * len(result.output_tokens)
        return {
            "content": [
                self._entry(value, token)
                | {"top_logprobs": [self._entry(other, candidate) for other, candidate in row or ()]}
                for (value, token), row in zip(result.output_tokens, rows, strict=True)
            ]
        }

    def _entry(self, value: float | None, token: int) -> dict[str, Any]:
        text = self._tokenizer.token_text(token)
        return {"token": text, "bytes": list(text.encode()), "logprob": value}


class Envelope:
    """Identity and usage of one response."""

    def __init__(self, kind: str, model: str, settings: EngineSettings, *, cache_report: bool) -> None:
        self.id = uuid.uuid4().hex
        self.created = int(time.time())
        self._kind = kind
        self._model = model
        self._settings = settings
        self._cache_report = cache_report

    def usage(self, choices: Sequence[Choice], prompts: int) -> dict[str, Any]:
        """Prompt tokens count once per prompt, not once per answer."""
        per_prompt = max(len(choices) // max(prompts, 1), 1)
        prompt = sum(choice.prompt_tokens for choice in choices[::per_prompt])
        completion = sum(choice.completion_tokens for choice in choices)
        cached = sum(choice.cached_tokens for choice in choices[::per_prompt])
        return {
            "prompt_tokens": prompt,
            "total_tokens": prompt + completion,
            "completion_tokens": completion,
            "prompt_tokens_details": {"cached_tokens": cached} if self._cache_report else None,
            "reasoning_tokens": sum(choice.reasoning_tokens for choice in choices),
        }

    def wrap(
        self, choices: list[dict[str, Any]], usage: dict[str, Any] | None, *, chunk: bool
    ) -> dict[str, Any]:
        kind = f"{self._kind}.chunk" if chunk and self._kind == "chat.completion" else self._kind
        data: dict[str, Any] = {
            "id": self.id,
            "object": kind,
            "created": self.created,
            "model": self._model,
            "choices": choices,
            "usage": usage,
        }
        if not chunk:
            data["metadata"] = {"weight_version": "default"}
        return data

    def meta_info(self, choice: Choice) -> dict[str, Any]:
        """What ``return_meta_info`` adds to a choice."""
        meta: dict[str, Any] = {
            "prompt_tokens": choice.prompt_tokens,
            "completion_tokens": choice.completion_tokens,
            "cached_tokens": choice.cached_tokens,
        }
        speculative = self._settings.speculative
        if choice.last is not None and choice.last.verify_steps and speculative is not None:
            meta |= speculation_meta(choice.last, speculative.block_size)
        return meta
