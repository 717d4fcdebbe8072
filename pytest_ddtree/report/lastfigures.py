"""Reports that were filled test by test, brought up to what the session knows at its end: rounds are added to a cell after its own test."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from pytest_ddtree.report.jsonreport import figure_properties, plain
from pytest_ddtree.results.model import CellFigures, Results, is_baseline
from pytest_ddtree.results.statistics import log_mean

WITHDRAWN = "ddtree.withdrawn"
"""The property that stands in place of the figures of a config that was found corrupt after they were measured."""


def last_figures(results: Results, config: str, cell: str, rounds: int, tok_s: str) -> CellFigures | None:
    """The figures of the cell that a test reported with `rounds` rounds and `tok_s` (six digits); None where there are none of it.

    The baseline of a further group of servers has another name here than in its test, so the first rounds say which one it is.
    """
    for (name, key), figures in results.cells.items():
        alike = name == config or (is_baseline(name) and is_baseline(config))
        if not alike or key.id != cell or len(figures.rounds) < rounds:
            continue
        if f"{log_mean(figures.tok_s_rounds[:rounds]).value:.6g}" == tok_s:
            return figures
    return None


def last_properties(properties: Iterable[tuple[str, str]], results: Results) -> list[tuple[str, str]]:
    """The properties of a test (`jsonreport.properties`) with the figures that its cell has now; those of other tests as they are."""
    given = list(properties)
    said = dict(given)
    try:
        rounds, tok_s = int(said["ddtree.rounds"]), said["ddtree.tok_s"]
        config, cell = said["ddtree.config"], said["ddtree.cell"]
    except (KeyError, ValueError):
        return given
    figures = last_figures(results, config, cell, rounds, tok_s)
    if figures is None:
        return given
    names = dict(figure_properties(figures))
    verdict = results.verdict(figures.config)
    if verdict is not None and not verdict.passed:
        return [*((name, value) for name, value in given if name not in names), (WITHDRAWN, verdict.kind)]
    return [(name, names.get(name, value)) for name, value in given]


def update_tests(json_report: dict[str, Any], results: Results) -> None:
    """Bring properties and figures of every test in pytest-json-report's report up to date, in place."""
    for test in json_report.get("tests", []):
        properties = test.get("user_properties")
        if isinstance(properties, list):
            pairs = [pair for one in properties if isinstance(one, Mapping) for pair in one.items()]
            test["user_properties"] = [{name: value} for name, value in last_properties(pairs, results)]
        found = test.get("metadata", {}).get("ddtree")
        if not isinstance(found, dict) or not isinstance(found.get("figures"), Mapping):
            continue
        before = found["figures"]
        tok_s = before["tok_s"]
        figures = last_figures(
            results, before["config"], before["cell"], len(tok_s["rounds"]), f"{tok_s['value']:.6g}"
        )
        if figures is None:
            continue
        verdict = results.verdict(figures.config)
        withdrawn = verdict is not None and not verdict.passed
        found["figures"] = None if withdrawn else plain({**figures.as_json(), "config": before["config"]})
