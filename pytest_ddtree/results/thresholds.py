"""Absolute thresholds: `tok_s >= 140 @ b8-k4 c=1 ctx=1024`, `speedup >= 1.4`. Checked against the grid before a server starts."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, Literal

from pytest_ddtree.grid import CellKey
from pytest_ddtree.results.gates import SHOWN, Outcome
from pytest_ddtree.results.metrics import METRICS, Metric, Values, applies
from pytest_ddtree.results.model import finite, is_baseline
from pytest_ddtree.results.paired import t_quantile, t_shift
from pytest_ddtree.results.selectors import Selector, SelectorError, check_selector, parse_selector
from pytest_ddtree.results.statistics import Interval, log_mean

_EXPRESSION = re.compile(r"\s*(\w+)\s*(>=|<=|>|<|==|=)\s*([^\s@]+)\s*(?:@\s*(.*\S))?\s*")


class ThresholdError(ValueError):
    """An expression that cannot be a gate; the text quotes it and says what is allowed."""


@dataclass(frozen=True, slots=True)
class Threshold:
    """A metric, the side on which it has to stay, the bound, and where this holds."""

    text: str
    metric: Metric
    bound: float
    where: Selector

    def takes(self, config: str, key: CellKey) -> bool:
        """Whether the threshold holds for a cell. The baseline is only meant when it is named."""
        if is_baseline(config) and self.where.config is None:
            return False
        return applies(self.metric, config) and self.where.takes(config, key)


@dataclass(frozen=True, slots=True)
class ThresholdResult:
    """What a cell made of a threshold. `missing`: the metric was not measured, which is an error and never a pass."""

    outcome: Outcome | Literal["missing"]
    text: str
    metric: str
    where: str
    threshold: Threshold
    interval: Interval | None = None
    """The figure; None where it is missing."""

    def __str__(self) -> str:
        return self.text

    def as_json(self) -> dict[str, Any]:
        """The same fields as those of a gate (`Gate.as_json`), with the bound as what was before. Of a figure that is not missing."""
        assert self.interval is not None
        bound, now = self.threshold.bound, self.interval
        high = self.threshold.metric.higher_is_better

        def loss(value: float) -> float | None:
            return finite(1 - value / bound if high else 1 - bound / value)

        ends = (now.high, now.low) if high else (now.low, now.high)
        return {
            "outcome": self.outcome,
            "what": self.where,
            "metric": self.metric,
            "threshold": self.threshold.text,
            "before": bound,
            "now": now.value,
            "against": f"threshold {self.threshold.text}",
            "loss": loss(now.value),
            "n": now.n,
            "low": loss(ends[0]) if now.n > 1 else None,
            "high": loss(ends[1]) if now.n > 1 else None,
            "tolerance": 0.0,
            "tolerance_why": "threshold",
            "smallest_visible": _visible(now),
            "text": self.text,
        }


def parse_threshold(text: str) -> Threshold:
    """One expression.

    Raises:
        ThresholdError: unknown metric, wrong direction, no number, or a selector that cannot be read.
    """
    match = _EXPRESSION.fullmatch(text)
    if match is None:
        raise ThresholdError(
            f"{text!r} is no threshold; it has the form `METRIC >= NUMBER` or `METRIC >= NUMBER @ CONFIG c=N ctx=N`"
        )
    name, sign, number, where = match.groups()
    metric = METRICS.get(name)
    if metric is None:
        near = get_close_matches(name, METRICS, 1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise ThresholdError(f"{text!r}: no metric {name!r}; there are {', '.join(METRICS)}{hint}")
    right = ">=" if metric.higher_is_better else "<="
    if sign != right:
        better = "higher" if metric.higher_is_better else "lower"
        raise ThresholdError(
            f"{text!r}: of {name} {better} is better, so its threshold is written with {right}"
        )
    try:
        bound = float(number)
    except ValueError:
        raise ThresholdError(f"{text!r}: {number!r} is no number") from None
    if not math.isfinite(bound) or bound <= 0:
        raise ThresholdError(f"{text!r}: the bound must be a positive number")
    try:
        selector = parse_selector(where or "")
    except SelectorError as error:
        raise ThresholdError(f"{text!r}: {error}") from None
    return Threshold(text.strip(), metric, bound, selector)


def check_thresholds(
    thresholds: Sequence[Threshold], configs: Sequence[str], cells: Sequence[CellKey]
) -> None:
    """Refuse a threshold that no cell of the grid can meet or miss. `configs` holds the baseline too.

    Raises:
        ThresholdError: quoting it.
    """
    for one in thresholds:
        try:
            check_selector(one.where, configs, cells)
        except SelectorError as error:
            raise ThresholdError(f"{one.text!r}: {error}") from None
        if not any(one.takes(config, cell) for config in configs for cell in cells):
            raise ThresholdError(f"{one.text!r}: no cell of the grid has this metric there")


def judge_threshold(threshold: Threshold, config: str, key: CellKey, values: Values) -> ThresholdResult:
    """`regressed` when the 95 % interval lies wholly on the wrong side, `fine` wholly on the right one, else undecided.

    `values` are the metric's rounds in this cell. A figure without any spread (one round, or rounds that all agree) is compared itself.
    """
    where = f"{config} {key.id}"
    if not values:
        return ThresholdResult(
            "missing",
            f"{where}: {threshold.metric} was not measured, so `{threshold.text}` cannot be judged",
            threshold.metric.name,
            where,
            threshold,
        )
    interval = log_mean(list(values.values()))
    outcome = _outcome(interval, threshold)
    digits = threshold.metric.digits
    spread = (
        "one round"
        if interval.n == 1
        else f"95% interval {interval.low:.{digits}f} to {interval.high:.{digits}f}"
    )
    figure = f"{threshold.metric} {interval.value:.{digits}f} {threshold.metric.unit}"
    text = f"{where}: {figure} ({spread}), asked `{threshold.text}`: {outcome}"
    if outcome == "undecided":
        text += f"; a figure {_visible(interval):.1%} off the bound would have been told from it"
    return ThresholdResult(outcome, text, threshold.metric.name, where, threshold, interval)


def _outcome(interval: Interval, threshold: Threshold) -> Outcome:
    low, high = interval.low, interval.high
    if interval.n == 1:
        low = high = interval.value
    if not threshold.metric.higher_is_better:
        low, high = -high, -low
    bound = threshold.bound if threshold.metric.higher_is_better else -threshold.bound
    if high < bound:
        return "regressed"
    return "fine" if low >= bound else "undecided"


def _visible(interval: Interval) -> float:
    """How far from the bound, as a share, a figure with this noise is told from it in 95 of 100 sessions; 1 for a single round."""
    if interval.n == 1:
        return 1.0
    limit = t_quantile(1 - SHOWN, interval.n - 1)
    error = math.log(interval.high / interval.value) / limit
    return -math.expm1(-error * t_shift(limit, interval.n - 1, 0.95))
