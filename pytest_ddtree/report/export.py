"""Stored runs as CSV and JSON, one row a round or a cell."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from typing import Any

from pytest_ddtree.report.findings import Report
from pytest_ddtree.report.jsonreport import session_json
from pytest_ddtree.results.metrics import METRICS, applies
from pytest_ddtree.results.model import CellFigures, Results, Round, finite
from pytest_ddtree.results.runs import StoredRun

CELL_COLUMNS = (
    "run",
    "build",
    "config",
    "context_tokens",
    "concurrency",
    "workload",
    "temperature",
    "sampling",
    "cache",
    "rounds",
    "requests",
    "tokens",
    "tok_s",
    "tok_s_low",
    "tok_s_high",
    "speedup",
    "speedup_low",
    "speedup_high",
    "ttft_p50_ms",
    "ttft_p90_ms",
    "ms_per_token_p50",
    "ms_per_token_p90",
    "decode_tok_s",
    "prefill_tok_s",
    "chunk_gap_p99_ms",
    "outlier_rounds",
    "accept_length",
    "verdict",
)
ROUND_COLUMNS = (
    "run",
    "build",
    "config",
    "context_tokens",
    "concurrency",
    "workload",
    "temperature",
    "sampling",
    "cache",
    "number",
    "again",
    "start_no",
    "at",
    "requests",
    "tokens",
    "wall_s",
    *(name for name in METRICS if name != "speedup"),
)


def cells_csv(run: StoredRun) -> str:
    """One row a cell, units in the names; an empty field is what is not known, and the speed of a config that is corrupt."""
    rows = [
        _cell_row(run, build, results, figures)
        for build, results in [("", run.results), *run.builds.items()]
        for figures in results.cells.values()
    ]
    return _csv(CELL_COLUMNS, rows)


def rounds_csv(run: StoredRun) -> str:
    """One row a round, repeats included."""
    return _csv(ROUND_COLUMNS, [_round_row(run, one) for one in run.rounds])


def as_json(run: StoredRun) -> str:
    """Everything of a run as one object, builds under their names."""
    value = session_json(Report.of(run))
    if run.builds:
        value["builds"] = {
            name: session_json(Report(results, run.started, run.id)) for name, results in run.builds.items()
        }
    return json.dumps(value, indent=1, allow_nan=False, ensure_ascii=False) + "\n"


def _cell_row(run: StoredRun, build: str, results: Results, figures: CellFigures) -> dict[str, Any]:
    verdict = results.verdict(figures.config)
    row = {
        "run": run.id,
        "build": build,
        "config": figures.config,
        "context_tokens": figures.key.context,
        "concurrency": figures.key.concurrency,
        "workload": figures.key.workload,
        "temperature": figures.key.temperature,
        "sampling": figures.key.sampling,
        "cache": figures.rounds[0].cache,
        "rounds": len(figures.rounds),
        "requests": figures.requests,
        "tokens": figures.tokens,
        "verdict": "" if verdict is None else verdict.kind,
    }
    if results.figures(figures.config, figures.key) is None:
        return row
    speedup = results.speedup(figures.config, figures.key)
    tok_s, ttft, per_token = figures.tok_s, figures.ttft_s, figures.time_per_token_s
    return {
        **row,
        "tok_s": tok_s.value,
        "tok_s_low": finite(tok_s.low),
        "tok_s_high": finite(tok_s.high),
        "speedup": None if speedup is None else speedup.value,
        "speedup_low": None if speedup is None else finite(speedup.low),
        "speedup_high": None if speedup is None else finite(speedup.high),
        "ttft_p50_ms": finite(ttft.p50 * 1e3),
        "ttft_p90_ms": finite(ttft.p90 * 1e3),
        "ms_per_token_p50": finite(per_token.p50 * 1e3),
        "ms_per_token_p90": finite(per_token.p90 * 1e3),
        "decode_tok_s": figures.decode_tok_s,
        "prefill_tok_s": figures.prefill_tok_s,
        "chunk_gap_p99_ms": finite(figures.chunk_gap_s.p99 * 1e3),
        "outlier_rounds": len(figures.outliers),
        "accept_length": figures.accept_length,
    }


def _round_row(run: StoredRun, one: Round) -> dict[str, Any]:
    values = {
        name: metric.of_round(one) if applies(metric, one.config) else None
        for name, metric in METRICS.items()
        if name != "speedup"
    }
    return {
        "run": run.id,
        "build": one.build,
        "config": one.config,
        "context_tokens": one.key.context,
        "concurrency": one.key.concurrency,
        "workload": one.key.workload,
        "temperature": one.key.temperature,
        "sampling": one.key.sampling,
        "cache": one.cache,
        "number": one.number,
        "again": one.again,
        "start_no": one.start_no,
        "at": one.at,
        "requests": one.requests,
        "tokens": one.tokens,
        "wall_s": one.wall_s,
        **values,
    }


def _csv(columns: Sequence[str], rows: Sequence[dict[str, Any]]) -> str:
    stream = io.StringIO()
    writer = csv.DictWriter(stream, columns, lineterminator="\n")
    writer.writeheader()
    for row in rows:
        writer.writerow({name: _field(value) for name, value in row.items()})
    return stream.getvalue()


def _field(value: Any) -> Any:
    if value is None:
        return ""
    # Spreadsheets run what begins like a formula.
    if isinstance(value, str) and value[:1] in ("=", "+", "-", "@"):
        return f"'{value}"
    if not isinstance(value, float):
        return value
    # Six digits are more than any measured figure is worth; of a time since 1970 they would leave no day.
    return f"{value:.6g}" if abs(value) < 1e5 else f"{value:.3f}"
