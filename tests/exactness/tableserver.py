"""A server with a known next-token distribution behind SGLang's `/generate`: the truth that procedures are
tested against.

Its model is a pure function of the last tokens, so what it must answer is known exactly. Answers can be
spoilt on purpose.
"""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import uvicorn
from numpy.typing import NDArray
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

VOCAB = 48
EOS = 0
REFUSAL = {"error": {"message": "DFLASH speculative decoding does not support return_logprob yet."}}

Spoil = Callable[[Sequence[int], int, int], int | None]
"""(ids of the prompt, index in the answer, the right token) -> another token to emit instead, or None."""


def logprobs(ids: Sequence[int]) -> NDArray[np.float64]:
    """Log-probabilities of the next token, shape (VOCAB,): a function of the last three ids."""
    generator = np.random.default_rng([*ids[-3:], len(ids) // 64])
    logits = generator.normal(0.0, 2.5, VOCAB)
    logits[EOS] += 1.0
    return logits - np.log(np.exp(logits).sum())


def greedy(ids: Sequence[int], output: int) -> list[int]:
    """The right answer of `output` tokens or up to and with EOS."""
    answer: list[int] = []
    while len(answer) < output and (not answer or answer[-1] != EOS):
        answer.append(int(np.argmax(logprobs([*ids, *answer]))))
    return answer


@dataclass
class TableServer:
    """Start with `with`; `url` then answers. `speculative` refuses logprobs and counts verify steps of `step`
    tokens."""

    speculative: bool = False
    step: int = 3
    spoil: Spoil = lambda prompt, index, right: None
    prefill_verifies: bool = False
    fail: Callable[[dict[str, Any]], Response | None] = lambda body: None
    drop_stop_token: bool = False
    scaled_logprobs: bool = False
    url: str = ""
    seen: list[dict[str, Any]] = field(default_factory=list)
    flushes: int = 0

    def __enter__(self) -> TableServer:
        app = Starlette(
            routes=[
                Route("/generate", self._generate, methods=["POST"]),
                Route("/flush_cache", self._flush, methods=["POST"]),
            ]
        )
        self._server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="error", lifespan="off"))
        self._thread = threading.Thread(target=self._server.run, daemon=True)
        self._thread.start()
        while not self._server.started:
            time.sleep(0.005)
        self.url = f"http://127.0.0.1:{self._server.servers[0].sockets[0].getsockname()[1]}"
        return self

    def __exit__(self, *error: object) -> None:
        self._server.should_exit = True
        self._thread.join()

    async def _flush(self, request: Request) -> Response:
        self.flushes += 1
        return Response("flushed")

    async def _generate(self, request: Request) -> Response:
        body = json.loads(await request.body())
        self.seen.append(body)
        failed = self.fail(body)
        if failed is not None:
            return failed
        if body.get("return_logprob") and self.speculative:
            return JSONResponse(REFUSAL, status_code=400)
        answer = self._answer(body)
        if not body.get("stream"):
            return JSONResponse(self._event(body, answer, len(answer)))

        async def events() -> AsyncIterator[bytes]:
            for end in self._ends(len(answer)):
                yield b"data: " + json.dumps(self._event(body, answer, end)).encode() + b"\n\n"
                await asyncio.sleep(0.002)
            yield b"data: [DONE]\n\n"

        return StreamingResponse(events(), media_type="text/event-stream")

    def _ends(self, tokens: int) -> list[int]:
        return sorted({*range(1, tokens, self.step if self.speculative else 1), tokens})

    def _answer(self, body: dict[str, Any]) -> list[int]:
        ids, params = body["input_ids"], body["sampling_params"]
        generator = np.random.default_rng(params.get("sampling_seed") or 0)
        answer: list[int] = []
        while len(answer) < params["max_new_tokens"]:
            scores = logprobs([*ids, *answer])
            token = int(np.argmax(scores))
            temperature = params.get("temperature", 0.0)
            if temperature > 0:
                weights = np.exp(scores / temperature)
                token = int(generator.choice(VOCAB, p=weights / weights.sum()))
            other = self.spoil(ids, len(answer), token)
            answer.append(token if other is None else other)
            if answer[-1] == EOS and not params.get("ignore_eos"):
                break
        return answer

    def _event(self, body: dict[str, Any], answer: list[int], end: int) -> dict[str, Any]:
        ids, sent = body["input_ids"], answer[:end]
        meta: dict[str, Any] = {"prompt_tokens": len(ids), "completion_tokens": end, "finish_reason": None}
        if end == len(answer):
            stopped = answer[-1] == EOS
            meta["finish_reason"] = (
                {"type": "stop", "matched": EOS} if stopped else {"type": "length", "length": end}
            )
            if stopped and self.drop_stop_token:
                sent = sent[:-1]
            verified = end if self.prefill_verifies else end - 1
            if self.speculative:
                meta["spec_verify_ct"] = -(-verified // self.step)
        if body.get("return_logprob"):
            top, start = body["top_logprobs_num"], body.get("logprob_start_len", len(ids))
            temperature = body["sampling_params"].get("temperature", 0.0)
            scale = temperature if self.scaled_logprobs and temperature > 0 else 1.0
            meta |= _side("input", ids, start, top, scale, first=None)
            meta |= _side("output", [*ids, *answer], len(ids), top, scale)
        return {"text": " ".join(map(str, sent)), "output_ids": sent, "meta_info": meta}


def _side(
    side: str, ids: Sequence[int], start: int, top: int, scale: float, first: Any = ...
) -> dict[str, Any]:
    tokens, tops = [], []
    for position in range(start, len(ids)):
        if position == start and first is None:
            tokens.append([None, ids[position], None])
            tops.append(None)
            continue
        scores = logprobs(ids[:position]) / scale
        scores -= np.log(np.exp(scores).sum())
        tokens.append([float(scores[ids[position]]), ids[position], None])
        tops.append([[float(scores[best]), int(best), None] for best in np.argsort(-scores)[:top]])
    return {f"{side}_token_logprobs": tokens, f"{side}_top_logprobs": tops}
