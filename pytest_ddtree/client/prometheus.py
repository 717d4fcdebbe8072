"""Prometheus text exposition, as `/metrics` of a server gives it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

_SAMPLE = re.compile(
    r"^(?P<name>[a-zA-Z_:][a-zA-Z0-9_:]*)\s*(?:\{(?P<labels>.*)\})?\s+(?P<value>\S+)(?:\s+-?\d+)?$"
)
_LABEL = re.compile(r'\s*([a-zA-Z_][a-zA-Z0-9_]*)\s*=\s*"((?:[^"\\]|\\.)*)"\s*,?')
_ESCAPE = re.compile(r"\\(.)")


@dataclass(frozen=True, slots=True)
class Sample:
    """One sample of a metric: its labels and its value."""

    labels: Mapping[str, str]
    value: float


def parse_metrics(text: str) -> dict[str, list[Sample]]:
    """Samples by metric name, in the order of the text; a histogram keeps its `_bucket`, ... names.

    Lines that are no sample (comments, blank lines, noise) are left out.
    """
    metrics: dict[str, list[Sample]] = {}
    for line in text.splitlines():
        match = _SAMPLE.match(line.strip())
        if match is None:
            continue
        try:
            value = float(match["value"])
        except ValueError:
            continue
        labels = {name: _ESCAPE.sub(_unescape, raw) for name, raw in _LABEL.findall(match["labels"] or "")}
        metrics.setdefault(match["name"], []).append(Sample(labels, value))
    return metrics


def total(metrics: Mapping[str, list[Sample]], name: str) -> float | None:
    """Sum over all samples of a metric (its ranks, its modes); None where the server does not have it."""
    samples = metrics.get(name)
    return sum(sample.value for sample in samples) if samples else None


def _unescape(match: re.Match[str]) -> str:
    return "\n" if match[1] == "n" else match[1]
