"""What the HTTP handlers share: the engine behind its bridge, the tokenizer, names and limits."""

from __future__ import annotations

import argparse
import itertools
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from ..chat import ChatTemplate
from ..engine import Engine
from ..request import LogprobOptions, Submission
from ..sampling import SamplingParams
from ..settings import EngineSettings
from ..tokenizer import Tokenizer
from .bridge import Channel, Frontend
from .errors import RequestError
from .observations import Observations

NO_LOGPROBS = "DFLASH speculative decoding does not support return_logprob yet."


@dataclass(slots=True)
class Service:
    """State of one server process. ``ready`` turns true after the warm-up generation."""

    args: argparse.Namespace
    settings: EngineSettings
    engine: Engine
    frontend: Frontend
    tokenizer: Tokenizer
    model_name: str
    launch_command: str
    chat_template: ChatTemplate | None
    observed: Observations
    ready: bool = False
    stopping: bool = False
    started_at: float = field(default_factory=time.time)
    _numbers: itertools.count[int] = field(default_factory=itertools.count)

    @property
    def vocab_size(self) -> int:
        return self.engine.runtime.target.config.vocab_size

    @property
    def speculative(self) -> bool:
        return self.settings.speculative is not None

    def check_ids(self, ids: Sequence[int]) -> None:
        """Raise RequestError for an empty prompt or a token outside the vocabulary."""
        if not ids:
            raise RequestError("The input is empty: at least one token is needed.")
        low, high = min(ids), max(ids)
        if low < 0 or high >= self.vocab_size:
            bad = low if low < 0 else high
            raise RequestError(
                f"The input_ids hold the value {bad}, outside the vocabulary of {self.vocab_size}."
            )

    def fit(self, length: int, params: SamplingParams) -> SamplingParams:
        """Check prompt and answer against the context; shorten the answer to what memory can hold.

        Raises:
            RequestError: too long.
        """
        context = self.settings.context_length
        if length >= context:
            raise RequestError(
                f"The input ({length} tokens) is longer than the model's context length ({context} tokens)."
            )
        if length + params.max_new_tokens > context:
            raise RequestError(
                f"Requested token count exceeds the model's maximum context length of {context} tokens. "
                f"You requested a total of {length + params.max_new_tokens} tokens: {length} tokens from the input "
                f"messages and {params.max_new_tokens} tokens for the completion. Please reduce the number of tokens "
                "in the input messages or the completion to fit within the limit."
            )
        reach = self.engine.runtime.max_request_tokens
        if length >= reach:
            raise RequestError(
                f"The input ({length} tokens) does not fit the key-value memory ({reach} tokens)."
            )
        return replace(params, max_new_tokens=min(params.max_new_tokens, reach - length))

    def submit(
        self,
        ids: Sequence[int],
        params: SamplingParams,
        *,
        rid: str | None = None,
        every: int = 1,
        logprobs: LogprobOptions | None = None,
        index: int = 0,
    ) -> tuple[str, Channel]:
        """Hand one generation to the engine. ``index`` distinguishes the n answers of one request.

        Without a seed of its own a request gets one from the server's seed and its number.
        """
        number = next(self._numbers)
        rid = rid or uuid.uuid4().hex
        if params.seed is None:
            seed = hash((self.settings.random_seed, number, 1))
        else:
            seed = params.seed if index == 0 else hash((params.seed, index, 2))
        submission = Submission(
            rid=rid,
            input_ids=np.asarray(ids, dtype=np.int64),
            params=params,
            seed=seed,
            logprobs=logprobs,
            every=every,
        )
        return rid, self.frontend.submit(submission)
