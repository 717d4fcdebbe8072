"""Whether so few tokens, under such a floor, would have shown a fault at all: the power of the rule. Pure.

The fault that must be seen is about the mildest one measured on a GPU: nodes that see their siblings had 4.8 % of
tokens not the argmax at level full and 7.3 % at level self, where healthy trees had 0.6 % and 1.4 %, two in five of
these beyond 1 nat. Positions by node order had 11.9 %.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from pytest_ddtree import tails
from pytest_ddtree.exactness.floor import NoiseFloor
from pytest_ddtree.exactness.rule import Rule, gap_limit, ratio_p, share_limit, spread_of
from pytest_ddtree.exactness.tally import Tally


@dataclass(frozen=True, slots=True, kw_only=True)
class PositionFault:
    """A verify mask or positions that are a little wrong."""

    share: float = 0.05
    """Tokens that are not the argmax beyond the healthy ones."""
    large: float = 0.4
    """Part of them with a gap above 1 nat ..."""
    tail: float = 3.5
    """... and the scale of the exponential tail behind it, nats."""
    prompt_variance: float = 0.5
    """Variance of a prompt's own rate over its mean rate squared: predictable text is hit less."""


def power(
    run: Tally, floor: NoiseFloor, rule: Rule, *, gaps: bool = True, fault: PositionFault | None = None
) -> float:
    """P(corrupt) if the server that gave as many tokens to as many prompts had a position fault, 0 to 1.

    By the criteria `gap` and `share` as if they were independent. `gaps` says whether gaps are known at all: where
    a judge tells only its own token there is no criterion but the share. An approximation; the simulation in
    `benchmarks/exactness/small_runs.py` compares it with the rule itself.
    """
    fault = fault or PositionFault()
    tokens = run.all_tokens
    prompts = int((run.by_prompt()[1] > 0).sum()) if run.tokens.size else 0
    if tokens == 0:
        return 0.0
    missed = 1.0 - _by_share(tokens, prompts, floor, rule, fault)
    if gaps:
        missed *= 1.0 - _by_gap(tokens, prompts, floor, rule, fault)
    return 1.0 - missed


def _by_gap(tokens: int, prompts: int, floor: NoiseFloor, rule: Rule, fault: PositionFault) -> float:
    """P(some gap beyond the limit): one minus the zero term of a negative binomial per prompt."""
    limit = gap_limit(rule, floor, tokens)
    beyond = fault.large * math.exp(-max(0.0, limit - 1.0) / fault.tail)
    mean = fault.share * beyond * tokens / prompts
    return 1.0 - math.exp(-prompts * math.log1p(fault.prompt_variance * mean) / fault.prompt_variance)


def _by_share(tokens: int, prompts: int, floor: NoiseFloor, rule: Rule, fault: PositionFault) -> float:
    """P(enough non-argmax tokens that the clustered test rejects): a negative binomial tail."""
    healthy = floor.share_bound()
    mean = (healthy + fault.share) * tokens
    own = 1.0 + fault.prompt_variance * fault.share * tokens / prompts
    spread = spread_of(floor, own, tokens / prompts, ratio=rule.healthy_ratio)
    in_floor = floor.share_off / spread
    low, high = math.floor(share_limit(rule, floor) * tokens) + 1, tokens + 1
    while low < high:
        middle = (low + high) // 2
        p = ratio_p(middle / spread, tokens, in_floor, floor.share_tokens, ratio=rule.healthy_ratio)
        if p <= rule.part:
            high = middle
        else:
            low = middle + 1
    if low > tokens:
        return 0.0
    return float(tails.negative_binomial_sf(low - 1, mean / (own - 1.0), 1.0 / own))
