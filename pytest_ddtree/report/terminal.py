"""Tables for the terminal, as plain lines of text: one table a config over context x concurrency, and a summary."""

from __future__ import annotations

import math
from collections.abc import Sequence

from pytest_ddtree.grid import CellKey
from pytest_ddtree.results.model import CellFigures, Results
from pytest_ddtree.results.statistics import Interval

BASELINE = "baseline"


def lines(results: Results) -> list[str]:
    """The whole report."""
    text: list[str] = []
    configs = list(dict.fromkeys(config for config, _ in results.cells))
    for config in configs:
        text.extend(_config_table(results, config))
        text.append("")
    text.extend(_summary(results))
    if results.coding:
        text.append("")
        text.extend(_coding(results))
    if results.starts:
        text.append("")
        text.extend(_starts(results))
    if results.gates:
        text.append("")
        text.extend(_gates(results))
    text.extend(f"warning: {warning}" for warning in results.warnings)
    return text


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


def milliseconds(seconds: float) -> str:
    return "-" if math.isnan(seconds) else f"{seconds * 1e3:.1f}" if seconds < 0.1 else f"{seconds * 1e3:.0f}"


def _config_table(results: Results, config: str) -> list[str]:
    verdict = results.verdict(config)
    if verdict is not None and not verdict.passed:
        return [f"{config}: no speeds shown: {verdict.kind} ({'; '.join(verdict.reasons)})"]
    cells = {key: figures for (name, key), figures in results.cells.items() if name == config}
    first = next(iter(cells.values()))
    title = f"{config}: {first.key.workload}, temperature {first.key.temperature:g}, {_conditions(first)}"
    head = [
        "context",
        "concurrency",
        "tok/s",
        "x baseline",
        "TTFT ms p50/p90",
        "ms/token p50/p90",
        "accept",
        "requests",
    ]
    rows = []
    for key in sorted(cells):
        figures = cells[key]
        rows.append(
            [
                str(key.context),
                str(key.concurrency),
                figure(figures.tok_s),
                speedup(results, config, key),
                f"{milliseconds(figures.ttft_s.p50)}/{milliseconds(figures.ttft_s.p90)}",
                f"{figures.time_per_token_s.p50 * 1e3:.2f}/{figures.time_per_token_s.p90 * 1e3:.2f}",
                "-" if figures.accept_length is None else f"{figures.accept_length:.2f}",
                str(figures.requests),
            ]
        )
    return [title, *table(head, rows)]


def _conditions(figures: CellFigures) -> str:
    parts = [
        f"cache {figures.rounds[0].cache}",
        f"{len(figures.rounds)} rounds",
        f"{figures.tokens / figures.requests:.0f} tokens an answer",
    ]
    return ", ".join(parts)


def speedup(results: Results, config: str, key: CellKey) -> str:
    figures, base = results.figures(config, key), results.figures(BASELINE, key)
    if config == BASELINE or figures is None or base is None:
        return "-"
    return figure(figures.speedup_over(base), digits=2)


def _summary(results: Results) -> list[str]:
    configs = list(dict.fromkeys([*results.verdicts, *(config for config, _ in results.cells)]))
    configs = [config for config in configs if config != BASELINE]
    if not configs:
        return []
    rows = []
    for config in configs:
        keys = sorted(key for name, key in results.cells if name == config)
        speedups = []
        for key in keys:
            figures, base = results.figures(config, key), results.figures(BASELINE, key)
            if figures is not None and base is not None:
                speedups.append((figures.speedup_over(base).value, key))
        accepts = [
            f.accept_length
            for (name, key), f in results.cells.items()
            if name == config and f.accept_length and results.figures(name, key)
        ]
        verdict = results.verdict(config)
        rows.append(
            [
                config,
                "not verified"
                if verdict is None
                else verdict.kind.upper()
                if not verdict.passed
                else verdict.kind,
                _extreme(speedups, least=True),
                _extreme(speedups, least=False),
                f"{min(accepts):.2f}-{max(accepts):.2f}" if accepts else "-",
                "-" if verdict is None else f"{verdict.off}/{verdict.tokens}, {verdict.largest:.2g} nats",
            ]
        )
    head = ["config", "verdict", "least speedup", "best speedup", "accept length", "off argmax, largest gap"]
    return ["summary (speedup over the baseline's cell of this session)", *table(head, rows)]


def _extreme(speedups: Sequence[tuple[float, CellKey]], *, least: bool) -> str:
    if not speedups:
        return "-"
    value, key = (min if least else max)(speedups, key=lambda pair: pair[0])
    return f"{value:.2f}x at {key.id}"


def _coding(results: Results) -> list[str]:
    head = ["coding", "solved", "baseline", "identical", "lost to rounding", "corrupt"]
    rows = [
        [
            one.config,
            f"{one.passed}/{one.problems}",
            f"{one.baseline_passed}/{one.problems}",
            str(one.identical),
            str(one.lost_to_rounding),
            str(one.corrupt),
        ]
        for one in results.coding.values()
    ]
    text = table(head, rows)
    for one in results.coding.values():
        states = ", ".join(f"{state} {base}/{here}" for state, base, here in one.states)
        text.append(f"{one.config}: {one.comparison}")
        text.append(f"{one.config}: outcomes (baseline/here): {states}")
    return text


def _gates(results: Results) -> list[str]:
    """Counts, and the sentence of every gate that is not fine."""
    outcomes = [gate["outcome"] for gate in results.gates]
    counts = ", ".join(
        f"{outcomes.count(one)} {one}" for one in ("regressed", "undecided", "fine") if one in outcomes
    )
    return [f"gates: {counts}", *(gate["text"] for gate in results.gates if gate["outcome"] != "fine")]


def _starts(results: Results) -> list[str]:
    total = sum(start.seconds for start in results.starts)
    parts = [
        f"{start.config}{f' ({start.reason})' if start.reason else ''} {start.seconds:.1f} s"
        for start in results.starts
    ]
    return [f"server starts: {len(results.starts)} in {total:.1f} s: {', '.join(parts)}"]
