"""Rows of the tables that every report shows, as plain texts. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pytest_ddtree.report.findings import Report
from pytest_ddtree.report.terminal import speedup
from pytest_ddtree.report.text import figure, per_token, significant, ttft
from pytest_ddtree.results.metrics import METRICS
from pytest_ddtree.results.model import Results, config_order, is_baseline
from pytest_ddtree.results.runs import SESSION
from pytest_ddtree.results.scale import NEARLY_ALL, accepted_text, change_of, least_text, signed

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

GATE_HEAD = (
    "outcome",
    "gate",
    "metric",
    "now",
    "before",
    "change of the metric",
    "tolerance or threshold",
    "smallest it could see",
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
        rows.append(
            (
                config,
                str(key.context),
                str(key.concurrency),
                f"{key.conditions}, {figures.rounds[0].cache}",
                figure(figures.tok_s),
                speedup(results, config, key),
                ttft(figures.ttft_s),
                per_token(figures.time_per_token_s),
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


def gate_rows(results: Results) -> list[tuple[str, ...]]:
    """One row a gate, with the figures and the sign of its sentence: a time that grows has a plus."""
    return [
        (
            str(gate["outcome"]),
            str(gate["what"]),
            str(gate["metric"]),
            significant(gate["now"]),
            significant(gate["before"]),
            _change(gate),
            *_limits(gate),
        )
        for gate in results.gates
    ]


def _change(gate: Mapping[str, Any]) -> str:
    """Of the loss where it is a mean over rounds or stays, which the two figures alone may not have; of a threshold the figures'."""
    metric = METRICS.get(gate["metric"])
    if "threshold" in gate or metric is None or gate["loss"] >= 1:
        return signed(gate["now"] / gate["before"] - 1) if gate["before"] else "-"
    return signed(change_of(gate["loss"], higher_is_better=metric.higher_is_better))


def _limits(gate: Mapping[str, Any]) -> tuple[str, str]:
    """Tolerance or threshold, and the smallest change for the worse that would have been seen, on the scale of the metric."""
    seen = gate["smallest_visible"]
    if "threshold" in gate:
        # Of a threshold it is a distance from the bound, to either side, which is no loss.
        return gate["threshold"], f"{seen:.1%}"
    metric = METRICS.get(gate["metric"])
    higher = metric is None or metric.higher_is_better
    tolerance = accepted_text(gate["tolerance"], gate["tolerance_why"], higher_is_better=higher)
    return tolerance, "nothing" if seen > NEARLY_ALL else least_text(seen, higher_is_better=higher)


def condition_rows(report: Report) -> list[tuple[str, str]]:
    """What the run depends on, by name; what nobody knows is left out."""
    rows = [("run", report.run), ("started", report.started)]
    sessions = {_build(scope): of for scope, of in report.fingerprints.items() if _of_session(scope)}
    for name, key in _CONDITIONS:
        said = {build: str(of.get(key) or "") for build, of in sessions.items()}
        if len(set(said.values())) == 1:
            rows.append((name, next(iter(said.values()))))
        else:
            rows.extend((f"{name} of build {build}", value) for build, value in said.items())
    rows.extend(
        (f"server {_titled(scope)}", f"version {of.get('version') or 'unknown'}; {of.get('args') or ''}")
        for scope, of in report.fingerprints.items()
        if not _of_session(scope)
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


def _of_session(scope: str) -> bool:
    return scope.rpartition(":")[2] == SESSION


def _build(scope: str) -> str:
    """The build of a fingerprint's scope; empty in a run of one."""
    return scope.rpartition(":")[0]


def _titled(scope: str) -> str:
    build, _, config = scope.rpartition(":")
    return f"{config} of build {build}" if build else config
