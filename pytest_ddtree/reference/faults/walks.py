"""Faults of the walk: sampling inside the tree, accepted and bonus tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ..request import Request
from ..sampling import SamplingParams
from .base import Fault


class BonusRepeated(Fault):
    """The bonus token is emitted twice."""

    name = "bonus_repeated"
    imitates = "SwiftLM #88: degenerate repetition behind a high accept length"

    def emitted(self, tokens: list[int], request: Request) -> list[int]:
        return [*tokens, tokens[-1]] if self.fires() else tokens


class BonusDropped(Fault):
    """The bonus token is lost whenever a draft was accepted."""

    name = "bonus_dropped"
    imitates = "HaiyuZhou/sglang ddtree_info: target_predict shifted by one against the draft tokens"

    def emitted(self, tokens: list[int], request: Request) -> list[int]:
        return tokens[:-1] if len(tokens) > 1 and self.fires() else tokens


class TemperatureIgnored(Fault):
    """The tree is walked greedily whatever the temperature."""

    name = "tree_ignores_temperature"
    imitates = "HaiyuZhou/sglang ddtree_info, SGLang #31214/#32922: sampling verify is silently greedy"

    def tree_params(self, params: SamplingParams) -> SamplingParams:
        return replace(params, temperature=0.0) if self.fires() else params


class DraftAccepted(Fault):
    """At a temperature above 0 the best candidate is accepted without asking the target."""

    name = "draft_accepted_uncorrected"
    imitates = "accept thresholds below 1.0 (SGLang's relaxed acceptance): the draft's distribution leaks"

    def tree_choice(self, token: int, children: Sequence[int], request: Request) -> int:
        if request.params.temperature > 0 and children and token not in children and self.fires():
            return children[0]
        return token


class CoinReused(Fault):
    """All draws of a step use the random number of its first position."""

    name = "coin_reused"
    imitates = "SGLang #7207, #26312: the same random coin is reused within a verification"

    def draw_position(self, position: int, depth: int) -> int:
        return position - depth if self.fires() else position


class LogitBiasIgnored(Fault):
    """logit_bias has no effect."""

    name = "logit_bias_ignored"
    imitates = "SGLang #10617/#11555: logit_bias and min_p are ignored under speculation"

    def params(self, params: SamplingParams) -> SamplingParams:
        return replace(params, logit_bias={}) if params.logit_bias and self.fires() else params


class SchemaIgnored(Fault):
    """A JSON schema is accepted and has no effect."""

    name = "schema_ignored"
    imitates = "SGLang #10617/#11555: what is not honoured under speculation is accepted all the same"

    def asked(self, raw: dict[str, Any]) -> dict[str, Any]:
        return {key: value for key, value in raw.items() if key != "json_schema"} if self.fires() else raw


class MinPIgnored(Fault):
    """min_p has no effect."""

    name = "min_p_ignored"
    imitates = "SGLang #10617/#11555: logit_bias and min_p are ignored under speculation"

    def params(self, params: SamplingParams) -> SamplingParams:
        return replace(params, min_p=0.0) if params.min_p and self.fires() else params


class PenaltiesIgnored(Fault):
    """Frequency, presence and repetition penalties have no effect."""

    name = "penalties_ignored"
    imitates = "SGLang #22049: penalties are ignored under speculation v2"

    def params(self, params: SamplingParams) -> SamplingParams:
        if not self.fires():
            return params
        return replace(params, frequency_penalty=0.0, presence_penalty=0.0, repetition_penalty=1.0)


class TopKIgnored(Fault):
    """top_k and top_p have no effect."""

    name = "top_k_ignored"
    imitates = "prune-type DDTree forks: native tree sampling knows neither top-k nor top-p nor min-p"

    def params(self, params: SamplingParams) -> SamplingParams:
        if params.top_k == 1 or not self.fires():
            return params
        return replace(params, top_k=-1, top_p=1.0)


class EosIgnored(Fault):
    """The end-of-text token does not end an answer."""

    name = "eos_ignored"
    imitates = "SGLang #31599/#33758: EOS inside an accepted run is missed"

    def params(self, params: SamplingParams) -> SamplingParams:
        return replace(params, ignore_eos=True) if self.fires() else params


class EosLeaks(Fault):
    """Tokens behind a stop inside an accepted run stay in the answer."""

    name = "stop_leaks"
    imitates = "SGLang #31599/#31569: post-stop tokens of an accepted run leak"

    def leftover(self, kept: int, tokens: Sequence[int], request: Request) -> int:
        stopped = request.finish is not None and request.finish.kind == "stop"
        return len(tokens) if stopped and self.fires() else kept


class LengthOvershoot(Fault):
    """An accepted run carries the answer beyond max_new_tokens."""

    name = "max_tokens_overshoot"
    imitates = "SGLang #33758: max_new_tokens is checked per step instead of per token"

    def leftover(self, kept: int, tokens: Sequence[int], request: Request) -> int:
        ended = request.finish is not None and request.finish.kind == "length"
        return len(tokens) if ended and self.fires() else kept


class StopStringMissed(Fault):
    """Stop strings are not looked for."""

    name = "stop_string_missed"
    imitates = "SGLang #23802: a stop string is missed under speculation"

    def params(self, params: SamplingParams) -> SamplingParams:
        return replace(params, stop=()) if params.stop and self.fires() else params


class RareToken(Fault):
    """One emitted token in N is another one than the target chose."""

    name = "rare_token"
    imitates = "SGLang #38009, vLLM #54928: greedy answers diverge now and then"
    takes = "N"
    default = 100

    def emitted(self, tokens: list[int], request: Request) -> list[int]:
        wrong: list[int] = []
        for offset, token in enumerate(tokens):
            hit = (request.length + offset) % max(self.number, 1) == 0 and self.fires()
            # The one before, which every vocabulary has.
            wrong.append(token - 1 if hit and token > 300 else token)
        return wrong
