"""Rows of the tables that every report shows, as plain texts. Pure."""

from __future__ import annotations

from pytest_ddtree.report.findings import Report
from pytest_ddtree.report.terminal import speedup
from pytest_ddtree.report.text import figure, milliseconds
from pytest_ddtree.results.model import Results, config_order, is_baseline
from pytest_ddtree.results.runs import SESSION

HEAD = (
    "config",
    "context",
    "concurrency",
    "conditions",
    "tok/s",
    "x baseline",
    "TTFT ms p50/p90",
    "ms/token p50/p90",
    "accept",
    "rounds",
)

_CONDITIONS = (
    ("plugin", "plugin.version"),
    ("GPU", "gpu.name"),
    ("GPUs", "gpu.count"),
    ("driver", "gpu.driver"),
    ("CUDA", "gpu.cuda"),
    ("power limit, W", "gpu.power_limit_w"),
    ("engine", "engine.kind"),
    ("engine revision", "engine.revision"),
    ("engine changes", "engine.diff"),
    ("model", "model.name"),
    ("draft model", "draft.name"),
    ("server arguments", "args.all"),
    ("seed", "workload.seed"),
)


def cell_rows(results: Results) -> list[tuple[str, ...]]:
    """One row a cell; a corrupt config has none, because the speed of wrong answers is no result."""
    rows: list[tuple[str, ...]] = []
    for config, key in sorted(results.cells, key=lambda cell: (config_order(cell[0]), cell[1])):
        figures = results.figures(config, key)
        if figures is None:
            continue
        ttft, per_token = figures.ttft_s, figures.time_per_token_s
        rows.append(
            (
                config,
                str(key.context),
                str(key.concurrency),
                f"{key.conditions}, {figures.rounds[0].cache}",
                figure(figures.tok_s),
                speedup(results, config, key),
                f"{milliseconds(ttft.p50)}/{milliseconds(ttft.p90)}",
                f"{per_token.p50 * 1e3:.2f}/{per_token.p90 * 1e3:.2f}",
                "-" if figures.accept_length is None else f"{figures.accept_length:.2f}",
                str(len(figures.rounds)),
            )
        )
    return rows


def verdict_rows(results: Results) -> list[tuple[str, str, str]]:
    """Config, verdict, and what was judged."""
    rows = []
    for config in results.verdicts:
        verdict = results.verdict(config)
        if verdict is not None:
            kind = verdict.kind if verdict.passed else verdict.kind.upper()
            rows.append((config, kind, verdict.summary()))
    configs = {config for config, _ in results.cells if not is_baseline(config)} - set(results.verdicts)
    rows.extend((config, "not verified", "-") for config in sorted(configs))
    return rows


def condition_rows(report: Report) -> list[tuple[str, str]]:
    """What the run depends on, by name; what nobody knows is left out."""
    rows = [("run", report.run), ("started", report.started)]
    session = report.fingerprints.get(SESSION)
    if session is not None:
        rows.extend((name, str(session.get(of) or "")) for name, of in _CONDITIONS)
    rows.extend(
        (f"server {scope}", f"version {of.get('version') or 'unknown'}; {of.get('args') or ''}")
        for scope, of in report.fingerprints.items()
        if scope != SESSION
    )
    starts = report.results.starts
    if starts:
        total = sum(start.seconds for start in starts)
        listed = ", ".join(
            f"{start.config}{f' ({start.reason})' if start.reason else ''} {start.seconds:.1f} s"
            for start in starts
        )
        rows.append(("server starts", f"{len(starts)} in {total:.1f} s: {listed}"))
    rows.extend(("drift", text) for text in report.results.drift)
    rows.append(("time", report.results.overhead))
    return [(name, value) for name, value in rows if value]
