"""Figures and tables as plain text, for every report."""

from __future__ import annotations

import math
from collections.abc import Sequence

from pytest_ddtree.results.model import Quantiles
from pytest_ddtree.results.statistics import Interval


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Columns padded to their widest cell: the first flush left, the others flush right."""
    widths = [max(len(row[i]) for row in (head, *rows)) for i in range(len(head))]

    def line(row: Sequence[str]) -> str:
        cells = [
            row[0].ljust(widths[0]),
            *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)),
        ]
        return "  ".join(cells).rstrip()

    return [line(head), "  ".join("-" * width for width in widths), *(line(row) for row in rows)]


def figure(interval: Interval, digits: int = 1) -> str:
    """`123.4 ±2.1%`, without the spread where there is one round only."""
    width = interval.half_width
    # Two rounds far apart give an interval of thousands of percent; that it says nothing is all there is to say.
    spread = "" if math.isinf(width) else " ±>100%" if width > 1 else f" ±{width:.0%}"
    return f"{interval.value:.{digits}f}{spread}"


def significant(value: float) -> str:
    """Four digits that count, all of those before the point, and no exponent: `0.9876`, `150`, `12346`."""
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def ttft(found: Quantiles) -> str:
    """`20.5/131` for p50 and p90 of seconds, in ms; a dash where no answer has it."""
    return "/".join(
        "-" if math.isnan(one) else f"{one * 1e3:.1f}" if one < 0.1 else f"{one * 1e3:.0f}"
        for one in (found.p50, found.p90)
    )


def per_token(found: Quantiles) -> str:
    """`2.00/3.15` for p50 and p90 of seconds, in ms; a dash where no answer has it: each came in one piece."""
    return "/".join("-" if math.isnan(one) else f"{one * 1e3:.2f}" for one in (found.p50, found.p90))
