"""Tables for the terminal, as plain lines of text: one table a config over context x concurrency, and a summary."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pytest_ddtree.grid import CellKey
from pytest_ddtree.report.text import figure, per_token, table, ttft
from pytest_ddtree.report.threeway import three_way
from pytest_ddtree.results.looping import WORTH
from pytest_ddtree.results.model import CellFigures, Results, config_order, is_baseline
from pytest_ddtree.workload.endings import UNCHOSEN


def lines(results: Results) -> list[str]:
    """The whole report."""
    text: list[str] = []
    configs = sorted({config for config, _ in results.cells}, key=config_order)
    for config in configs:
        verdict = results.verdict(config)
        if verdict is not None and not verdict.passed:
            reasons = "; ".join(verdict.reasons)
            text.extend([f"{config}: no speeds shown: {verdict.kind} ({reasons})", ""])
            continue
        for keys in alike(key for name, key in results.cells if name == config):
            text.extend(_config_table(results, config, keys))
            text.append("")
    text.extend(three_way(results))
    text.extend(_summary(results))
    if results.coding:
        text.append("")
        text.extend(_coding(results))
    if results.starts:
        text.append("")
        text.extend(_starts(results))
    text.extend(results.drift)
    if results.overhead:
        text.append(results.overhead)
    if results.gates:
        text.append("")
        text.extend(_gates(results))
    text.extend(results.recorded)
    text.extend(_differences(results))
    said = {gate["text"] for gate in results.gates}
    text.extend(f"warning: {warning}" for warning in results.warnings if warning not in said)
    return text


def alike(keys: Iterable[CellKey]) -> list[list[CellKey]]:
    """Cells that differ in context and concurrency alone, each group in order; the groups in the order of their first cell."""
    groups: dict[tuple[str, str], list[CellKey]] = {}
    for key in keys:
        groups.setdefault((key.conditions, key.cache), []).append(key)
    return [sorted(group) for group in groups.values()]


def _differences(results: Results) -> list[str]:
    """Conditions in which a config differs from its baseline, as far as both servers say what they have; equal ones together."""
    alike: dict[str, list[str]] = {}
    for name, found in results.differences.items():
        known = [text for text in found if "?" not in text]
        if known:
            alike.setdefault("; ".join(known), []).append(name)
    return [f"conditions differ: {', '.join(names)}: {text}" for text, names in alike.items()]


def _config_table(results: Results, config: str, keys: Sequence[CellKey]) -> list[str]:
    cells = {key: results.cells[(config, key)] for key in keys}
    title = f"{config}: {keys[0].conditions}, {_conditions(list(cells.values()))}"
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
    for key, figures in cells.items():
        rows.append(
            [
                str(key.context),
                str(key.concurrency),
                figure(figures.tok_s),
                speedup(results, config, key),
                ttft(figures.ttft_s),
                per_token(figures.time_per_token_s),
                "-" if figures.accept_length is None else f"{figures.accept_length:.2f}",
                str(figures.requests),
            ]
        )
    return [title, *table(head, rows), *_remarks(list(cells.values()))]


def _conditions(cells: Sequence[CellFigures]) -> str:
    rounds = sorted({len(figures.rounds) for figures in cells})
    first = cells[0]
    parts = [
        f"cache {first.rounds[0].cache}",
        f"{rounds[0]} rounds" if len(rounds) == 1 else f"{rounds[0]} to {rounds[-1]} rounds",
        f"{first.tokens / first.requests:.0f} tokens an answer",
    ]
    return ", ".join(parts)


def _remarks(cells: Sequence[CellFigures]) -> list[str]:
    """What the table does not show: cells that did not reach the precision asked for, odd rounds, answers beyond their end."""
    lines = []
    for stopped, words in (("max_rounds", "cap of rounds"), ("max_seconds", "time budget")):
        short = [figures for figures in cells if figures.stopped == stopped]
        if short:
            where = "every cell" if len(short) == len(cells) else ", ".join(one.key.id for one in short)
            lines.append(f"stopped at the {words}, short of the precision asked for: {where}")
    for figures in cells:
        for one in figures.outliers:
            others = [other.tok_s for other in figures.rounds if other not in figures.outliers]
            lines.append(
                f"outlier, counted all the same: {figures.key.id} round {one.number + 1}: {one.tok_s:.1f} tok/s "
                f"(the others {min(others):.1f} to {max(others):.1f})"
            )
    lines += [
        f"{figures.key.id}: {figures.after_end:.1%} of its tokens came after the natural end of their answer, which "
        "flatters a drafter: accept length and tok/s may be too high by as much"
        for figures in cells
        if figures.after_end > UNCHOSEN.after_end
    ]
    lines += [
        f"{figures.key.id}: {figures.looping} of {figures.requests} answers end in a loop, which a drafter predicts: tok/s may be too "
        f"high by {WORTH * figures.looping / figures.requests:.1%}"
        for figures in cells
        if figures.looping and not is_baseline(figures.config)
    ]
    return lines


def speedup(results: Results, config: str, key: CellKey) -> str:
    found = results.speedup(config, key)
    return "-" if found is None else figure(found, digits=2)


def _summary(results: Results) -> list[str]:
    configs = sorted({*results.verdicts, *(config for config, _ in results.cells)}, key=config_order)
    configs = [config for config in configs if not is_baseline(config)]
    if not configs:
        return []
    rows = []
    for config in configs:
        keys = sorted(key for name, key in results.cells if name == config)
        speedups = []
        for key in keys:
            found = results.speedup(config, key)
            if found is not None:
                speedups.append((found.value, key))
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
                "-" if verdict is None else f"{verdict.off}/{verdict.tokens}, {verdict.largest_text}",
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
            f"{one.passed}/{one.answers}",
            f"{one.baseline_passed}/{one.answers}",
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
        text.extend(f"{one.config}: {note}" for note in one.notes)
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
