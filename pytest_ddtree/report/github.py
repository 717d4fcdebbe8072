"""GitHub Actions: the step summary, regressions first, and annotations."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from pytest_ddtree.report.findings import Finding, Report, findings
from pytest_ddtree.report.rows import HEAD, cell_rows, condition_rows, verdict_rows
from pytest_ddtree.report.threeway import FLAT_HEAD, flat_rows
from pytest_ddtree.results.secrets import scrub

LARGEST = 900_000
"""Bytes of a summary; GitHub shows none beyond 1 MiB."""
MOST_ANNOTATIONS = 10
"""GitHub shows ten of a kind a step."""


def markdown(report: Report) -> str:
    """The summary of a run in GitHub's Markdown."""
    found = findings(report.results)
    failures = [one for one in found if one.weight == "failure"]
    warnings = [one for one in found if one.weight == "warning"]
    parts = [f"## ddtree: {_headline(report, failures, warnings)}"]
    if failures:
        parts.append(_list("### Regressions", failures))
    if warnings:
        parts.append(_list("### Undecided, and warnings", warnings))
    verdicts = verdict_rows(report.results)
    if verdicts:
        parts.append(_table(("config", "verdict", "judged"), verdicts))
    cells = cell_rows(report.results)
    if cells:
        parts.append("### Figures\n\n" + _table(HEAD, cells))
    compared = list(flat_rows(report.results))
    if compared:
        parts.append("### Best baseline, chain and tree\n\n" + _table(FLAT_HEAD, compared))
    gates = [
        (gate["what"], gate["metric"], gate["outcome"], f"{-gate['loss']:+.1%}", f"{gate['tolerance']:.1%}")
        for gate in report.results.gates
    ]
    if gates:
        head = ("gate", "metric", "outcome", "better or worse by", "tolerance")
        parts.append("### Gates\n\n" + _table(head, gates))
    conditions = condition_rows(report)
    if conditions:
        table = _table(("what", "value"), conditions)
        parts.append(f"<details><summary>Conditions</summary>\n\n{table}\n\n</details>")
    return "\n\n".join(parts) + "\n"


def commands(found: Sequence[Finding]) -> list[str]:
    """Workflow commands, one line each: `::error` for what failed, `::warning` for the rest."""
    lines: list[str] = []
    for weight, command in (("failure", "error"), ("warning", "warning")):
        chosen = [one for one in found if one.weight == weight]
        lines.extend(
            f"::{command} title={_property(f'ddtree: {one.title}')}::{_data(one.text)}"
            for one in chosen[:MOST_ANNOTATIONS]
        )
    return lines


def write_summary(
    report: Report, environment: Mapping[str, str] | None = None, *, secrets: Sequence[str] = ()
) -> Path | None:
    """Append to the file that GITHUB_STEP_SUMMARY names; None where there is none. What is too long for GitHub is cut and says so."""
    environment = os.environ if environment is None else environment
    name = environment.get("GITHUB_STEP_SUMMARY")
    if not name:
        return None
    text: str = scrub(markdown(report), secrets)
    data = text.encode()
    if len(data) > LARGEST:
        data = data[:LARGEST].rsplit(b"\n", 1)[0] + b"\n\nThe rest is too long for a summary.\n"
    path = Path(name)
    with path.open("ab") as stream:
        stream.write(data)
    return path


def _headline(report: Report, failures: Sequence[Finding], warnings: Sequence[Finding]) -> str:
    if failures:
        return f"{len(failures)} regression{'s' if len(failures) > 1 else ''}"
    if not report.results.cells and report.results.gates:
        # A comparison of builds has no figures of its own: what is judged of it are its gates.
        undecided = sum(gate["outcome"] == "undecided" for gate in report.results.gates)
        rest = f", {undecided} undecided" if undecided else ""
        return f"no regression in {len(report.results.gates)} gates{rest}"
    cells = len(report.results.cells)
    rest = f", {len(warnings)} to look at" if warnings else ""
    return f"no regression in {cells} cells{rest}"


def _list(title: str, found: Sequence[Finding]) -> str:
    rows = "\n".join(f"- **{_cell(one.title)}**: {_cell(one.text)}" for one in found)
    return f"{title}\n\n{rows}"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [_row(head), "|" + " --- |" * len(head), *(_row(row) for row in rows)]
    return "\n".join(lines)


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(_cell(cell) for cell in cells) + " |"


def _cell(text: str) -> str:
    """Text in which nothing is markup: what a model wrote may end up here."""
    for character in "\\`*_[]|~#!":
        text = text.replace(character, "\\" + character)
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace("\n", "<br>")


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
