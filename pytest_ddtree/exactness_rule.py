"""The rule by which a session judges answers: the options' thresholds, and what arithmetic and model ask for."""

from __future__ import annotations

from pytest_ddtree.exactness.rule import Rule, least_gap
from pytest_ddtree.options import Settings


def rule_of(settings: Settings, *, configs: int, float32: bool, experts: bool) -> Rule:
    """The rule with the options' thresholds; the design rate of false alarms is a session's, shared by its configs."""
    least = settings.gap_min
    return Rule(
        gap_factor=settings.gap_factor,
        gap_min=least_gap(float32=float32, experts=experts) if least is None else least,
        share_factor=settings.share_factor,
        share_margin=settings.share_margin,
        alpha=settings.alpha / max(1, configs),
    )
