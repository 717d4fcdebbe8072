"""What goes into the reports of others: pytest-json-report, pytest-benchmark, JUnit XML. Plain values, no secret."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from pytest_ddtree.report.findings import Report, findings
from pytest_ddtree.results.expected import DRIFT
from pytest_ddtree.results.model import CellFigures, finite
from pytest_ddtree.results.secrets import allowed_environment, mask_values, scrub
from pytest_ddtree.results.statistics import Interval

SCHEMA = 1
"""Version of the object `ddtree` in the JSON report."""


def session_json(report: Report) -> dict[str, Any]:
    """The object `ddtree`: findings, verdicts, cells, gates, coding, starts, effective configs, fingerprints."""
    results = report.results
    value = {
        "schema": SCHEMA,
        "run": report.run,
        "started": report.started,
        "findings": [
            {"weight": one.weight, "title": one.title, "text": one.text} for one in findings(results)
        ],
        "verdicts": {
            config: [verdict.as_json() for verdict in verdicts]
            for config, verdicts in results.verdicts.items()
        },
        "cells": [
            {**figures.as_json(), "speedup": _interval(results.speedup(config, key))}
            for config, key in results.cells
            if (figures := results.figures(config, key)) is not None
        ],
        "gates": [dict(gate) for gate in results.gates],
        "coding": [summary.as_json() for summary in results.coding.values()],
        "starts": [
            {"config": start.config, "reason": start.reason, "seconds": start.seconds}
            for start in results.starts
        ],
        "effective": dict(results.effective),
        "fingerprints": {scope: of.as_json() for scope, of in report.fingerprints.items()},
    }
    masked: dict[str, Any] = plain(mask_values(value))
    return masked


def enrich(
    json_report: dict[str, Any], report: Report, *, secrets: Sequence[str], environment: Mapping[str, str]
) -> None:
    """Change pytest-json-report's report in place (`pytest_json_modifyreport`): add `ddtree`, set `environment`, mask secrets.

    `environment` is filtered by an allow list; `secrets` (see `known_secrets`) are masked wherever they stand, in tracebacks and
    captured output too. User properties, which that plugin gives as a list of one-key objects, become one object a test.
    """
    json_report["ddtree"] = session_json(report)
    clean(json_report, secrets=secrets, environment=environment)


def clean(json_report: dict[str, Any], *, secrets: Sequence[str], environment: Mapping[str, str]) -> None:
    """Change pytest-json-report's report in place, as `enrich` does, but add nothing: for sessions that have no run."""
    known = json_report.get("environment")
    json_report["environment"] = {
        **(_versions(known) if isinstance(known, Mapping) else {}),
        **allowed_environment(environment),
    }
    for test in json_report.get("tests", []):
        properties = test.get("user_properties")
        if isinstance(properties, list):
            test["user_properties"] = {
                name: value for one in properties if isinstance(one, Mapping) for name, value in one.items()
            }
    without = scrub(json_report, secrets)
    json_report.clear()
    json_report.update(without)


def cell_metadata(figures: CellFigures, gates: Sequence[Mapping[str, Any]] = ()) -> dict[str, Any]:
    """What `pytest_json_runtest_metadata` adds to a test that measured a cell."""
    value: dict[str, Any] = plain(
        {"ddtree": {"figures": figures.as_json(), "gates": [dict(gate) for gate in gates]}}
    )
    return value


def properties(figures: CellFigures, gates: Sequence[Mapping[str, Any]] = ()) -> list[tuple[str, str]]:
    """User properties of a test for JUnit XML: figures with units in their names, then the outcome of each gate."""
    found = [("ddtree.config", figures.config), ("ddtree.cell", figures.key.id), *figure_properties(figures)]
    found.extend(
        (
            f"ddtree.gate.{gate.get('threshold') or gate['metric']}"
            + (".drift" if str(gate.get("against")).startswith(DRIFT) else ""),
            str(gate["outcome"]),
        )
        for gate in gates
    )
    return found


def figure_properties(figures: CellFigures) -> list[tuple[str, str]]:
    """The figures of a cell as properties, with how many rounds they rest on; none for a figure that no answer has."""
    known = (
        ("ddtree.tok_s", figures.tok_s.value),
        ("ddtree.ttft_p90_ms", finite(figures.ttft_s.p90 * 1e3)),
        ("ddtree.ms_per_token_p90", finite(figures.time_per_token_s.p90 * 1e3)),
        ("ddtree.accept_length", figures.accept_length),
    )
    found = [(name, f"{value:.6g}") for name, value in known if value is not None]
    return [*found, ("ddtree.rounds", str(len(figures.rounds)))]


def _interval(found: Interval | None) -> dict[str, Any] | None:
    return None if found is None else {"value": found.value, "low": found.low, "high": found.high}


def _versions(known: Mapping[str, Any]) -> dict[str, Any]:
    """Of what pytest-metadata collected: versions and platform, nothing that a CI system put there."""
    return {name: known[name] for name in ("Python", "Platform", "Packages", "Plugins") if name in known}


def plain(value: Any) -> Any:
    """Without NaN and infinities, which JSON does not have."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(name): plain(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [plain(inner) for inner in value]
    return value
