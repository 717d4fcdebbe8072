"""Drawing tokens. Every draw is a pure function of logits, parameters, seed and absolute position.

Nothing depends on the batch, on the step or on how many draws came before, so a token drawn inside a draft tree is
the token that plain decoding would have drawn at that position.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from .arrays import F32, F64

MASK64 = (1 << 64) - 1
GREEDY_BELOW = 1e-6
"""Temperatures below this are greedy, as in SGLang: logits divided by them would leave the numbers' range."""


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """SGLang's sampling parameters (names and defaults as its ``/generate`` has them)."""

    max_new_tokens: int = 128
    min_new_tokens: int = 0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    min_p: float = 0.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    no_stop_trim: bool = False
    skip_special_tokens: bool = True
    seed: int | None = None
    n: int = 1

    @property
    def greedy(self) -> bool:
        return self.temperature < GREEDY_BELOW or self.top_k == 1

    @property
    def edits_logits(self) -> bool:
        """True when a token's choice needs more than the bare logits row."""
        return bool(
            self.frequency_penalty
            or self.presence_penalty
            or self.repetition_penalty != 1.0
            or self.logit_bias
            or self.min_new_tokens
        )


def _mix(state: int) -> int:
    """SplitMix64's finaliser (Steele, Lea, Flood 2014)."""
    state = (state + 0x9E3779B97F4A7C15) & MASK64
    state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & MASK64
    state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & MASK64
    return state ^ (state >> 31)


def uniform(seed: int, position: int) -> float:
    """A number in [0, 1) that depends on seed and position alone."""
    return (_mix(_mix(seed & MASK64) ^ _mix(position + 0x632BE59BD9B4E019)) >> 11) * 2.0**-53


def edited(
    logits: F32, params: SamplingParams, counts: Mapping[int, int], seen: Sequence[int] | set[int]
) -> F32:
    """Logits after bias and penalties; a copy.

    counts: how often each token was generated; seen: tokens of prompt and answer (for the repetition penalty).
    """
    result = logits.copy()
    if params.repetition_penalty != 1.0 and seen:
        ids = np.fromiter(seen, dtype=np.int64)
        values = result[ids]
        result[ids] = np.where(
            values > 0, values / params.repetition_penalty, values * params.repetition_penalty
        )
    if counts and (params.frequency_penalty or params.presence_penalty):
        ids = np.fromiter(counts.keys(), dtype=np.int64, count=len(counts))
        times = np.fromiter(counts.values(), dtype=np.float32, count=len(counts))
        result[ids] -= np.float32(params.frequency_penalty) * times + np.float32(params.presence_penalty)
    for token, bias in params.logit_bias.items():
        result[token] += bias
    return result


def distribution(logits: F32, params: SamplingParams) -> F64:
    """Probabilities that a draw uses, [vocab]: softmax at the temperature, then top_k, top_p, min_p, renormalised."""
    scaled = logits.astype(np.float64) / params.temperature
    scaled -= scaled.max()
    probabilities: F64 = np.exp(scaled)
    probabilities /= probabilities.sum()
    size = len(probabilities)
    limit_k = 0 < params.top_k < size
    if not limit_k and params.top_p >= 1.0 and params.min_p <= 0.0:
        return probabilities
    order = np.argsort(-probabilities, kind="stable")
    ranked = probabilities[order]
    keep = np.ones(size, dtype=bool)
    if limit_k:
        keep[params.top_k :] = False
    if params.top_p < 1.0:
        keep &= np.cumsum(ranked) - ranked <= params.top_p
    if params.min_p > 0.0:
        keep &= ranked >= params.min_p * ranked[0]
    keep[0] = True
    probabilities[order[~keep]] = 0.0
    probabilities /= probabilities.sum()
    return probabilities


def draw(probabilities: F64, number: float) -> int:
    """The token at ``number`` of the cumulative distribution over token ids."""
    cumulative = np.cumsum(probabilities)
    token = int(np.searchsorted(cumulative, number * cumulative[-1], side="right"))
    return min(token, int(np.flatnonzero(probabilities)[-1]))


def choose(logits: F32, params: SamplingParams, seed: int, position: int) -> int:
    """The token at ``position``: the argmax when greedy, else the draw that seed and position determine."""
    if params.greedy:
        return int(logits.argmax())
    return draw(distribution(logits, params), uniform(seed, position))


def log_softmax(logits: F32) -> F32:
    """Log-probabilities over the last axis, in float32 with a float64 sum."""
    peak = logits.max(axis=-1, keepdims=True)
    shifted = logits - peak
    total = np.exp(shifted, dtype=np.float64).sum(axis=-1, keepdims=True)
    result: F32 = (shifted - np.log(total)).astype(np.float32)
    return result
