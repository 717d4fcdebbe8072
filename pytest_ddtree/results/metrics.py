"""What is gated: the metrics, which way is better, and their value in each round."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from pytest_ddtree.results.model import CellFigures, Quantiles, Round, is_baseline


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric. `of_round` is its value in a round, None where the round does not have it."""

    name: str
    unit: str
    higher_is_better: bool
    tolerance: float
    """A loss up to this share is accepted within one session."""
    of_round: Callable[[Round], float | None]
    digits: int = 1

    def __str__(self) -> str:
        return self.name


def _p90_ms(values: Sequence[float]) -> float | None:
    return Quantiles.of(values).p90 * 1e3 if values else None


def _accept(one: Round) -> float | None:
    return one.tokens / one.verify_steps if one.verify_steps else None


TOK_S = Metric("tok_s", "tok/s", True, 0.03, lambda one: one.tok_s)
TTFT_P90 = Metric("ttft_p90_ms", "ms", False, 0.10, lambda one: _p90_ms(one.ttft_s))
PER_TOKEN_P90 = Metric("ms_per_token_p90", "ms", False, 0.05, lambda one: _p90_ms(one.time_per_token_s), 2)
ACCEPT = Metric("accept_length", "tokens/step", True, 0.02, _accept, 2)
SPEEDUP = Metric("speedup", "x", True, 0.03, lambda one: None, 2)
"""tok/s over the best baseline's tok/s in the same session; its rounds need both, see `round_values`."""

METRICS: Mapping[str, Metric] = {one.name: one for one in (TOK_S, TTFT_P90, PER_TOKEN_P90, ACCEPT, SPEEDUP)}

Values = dict[int, float]
"""Round number -> value. The same number has the same prompts, in every config, build and session of the same seed."""


def round_values(metric: Metric, figures: CellFigures, baseline: CellFigures | None = None) -> Values:
    """The metric in each round; empty where it does not exist (no accept length without speculation, no speedup of the baseline)."""
    if metric is SPEEDUP:
        if baseline is None or baseline.config == figures.config:
            return {}
        base = {one.number: one.tok_s for one in baseline.rounds}
        return {one.number: one.tok_s / base[one.number] for one in figures.rounds if one.number in base}
    found = {one.number: metric.of_round(one) for one in figures.rounds}
    if any(value is None for value in found.values()):
        return {}
    return {number: value for number, value in found.items() if value is not None and value > 0}


def applies(metric: Metric, config: str) -> bool:
    """Whether a config can have the metric at all."""
    return not is_baseline(config) or metric not in (ACCEPT, SPEEDUP)
