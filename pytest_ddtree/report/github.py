"""GitHub Actions: the step summary, regressions first, and annotations."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from pytest_ddtree.report.findings import Finding, Report, calm, findings
from pytest_ddtree.report.rows import GATE_HEAD, HEAD, cell_rows, condition_rows, gate_rows, verdict_rows
from pytest_ddtree.report.threeway import FLAT_HEAD, flat_rows
from pytest_ddtree.results.secrets import scrub

LARGEST = 900_000
"""Bytes of a summary; GitHub shows none beyond 1 MiB."""
MOST_LISTED = 30
"""Findings of a kind that the summary shows."""
LINES = 5
"""Lines of a finding that are shown."""
MOST_ANNOTATIONS = 10
"""GitHub shows ten of a kind a step."""


def markdown(report: Report) -> str:
    """The summary of a run in GitHub's Markdown."""
    found = findings(report.results)
    parts = [f"## ddtree: {_headline(report, found)}"]
    for title, chosen in (
        ("### Regressions", [one for one in found if one.weight == "failure" and one.regression]),
        ("### Failed", [one for one in found if one.weight == "failure" and not one.regression]),
        ("### Errors: not judged", [one for one in found if one.weight == "error"]),
        ("### Undecided, and warnings", [one for one in found if one.weight == "warning"]),
    ):
        if chosen:
            parts.append(_list(title, chosen))
    verdicts = verdict_rows(report.results)
    if verdicts:
        parts.append(_table(("config", "verdict", "judged"), verdicts))
    cells = cell_rows(report.results)
    if cells:
        parts.append("### Figures\n\n" + _table(HEAD, cells))
    compared = list(flat_rows(report.results))
    if compared:
        parts.append("### Best baseline, chain and tree\n\n" + _table(FLAT_HEAD, compared))
    gates = gate_rows(report.results)
    if gates:
        parts.append("### Gates\n\n" + _table(GATE_HEAD, gates))
    conditions = condition_rows(report)
    if conditions:
        table = _table(("what", "value"), conditions)
        parts.append(f"<details><summary>Conditions</summary>\n\n{table}\n\n</details>")
    return "\n\n".join(parts) + "\n"


def commands(found: Sequence[Finding]) -> list[str]:
    """Workflow commands, one line each: `::error` for what failed or was not judged, `::warning` for the rest."""
    lines: list[str] = []
    for command in ("error", "warning"):
        chosen = [one for one in found if (one.weight == "warning") == (command == "warning")]
        lines.extend(
            f"::{command} title={_property(f'ddtree: {one.title}')}::{_data(_beginning(one.text))}"
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
    data = text.encode(errors="backslashreplace")
    if len(data) > LARGEST:
        data = data[:LARGEST].rsplit(b"\n", 1)[0] + b"\n\nThe rest is too long for a summary.\n"
    path = Path(name)
    with path.open("ab") as stream:
        stream.write(data)
    return path


def _headline(report: Report, found: Sequence[Finding]) -> str:
    """Regressions, other failures and errors, as far as there are any; nothing is called fine that was not judged."""
    counts = (
        (sum(one.weight == "failure" and one.regression for one in found), "regression"),
        (sum(one.weight == "failure" and not one.regression for one in found), "other failure"),
        (sum(one.weight == "error" for one in found), "error"),
    )
    bad = [f"{count} {what}{'s' if count > 1 else ''}" for count, what in counts if count]
    if bad:
        return ", ".join(bad)
    open_gates = {gate["text"] for gate in report.results.gates if gate["outcome"] == "undecided"}
    undecided = sum(one.text in open_gates for one in found)
    warnings = len(found) - undecided
    rest = [f"{undecided} undecided"] if undecided else []
    rest += [f"{warnings} to look at"] if warnings else []
    return ", ".join([calm(report.results), *rest])


def _list(title: str, found: Sequence[Finding]) -> str:
    rows = [f"- **{_cell(one.title)}**: {_cell(_beginning(one.text))}" for one in found[:MOST_LISTED]]
    if len(found) > MOST_LISTED:
        rows.append(f"- and {len(found) - MOST_LISTED} more")
    return "\n".join([f"{title}\n", *rows])


def _beginning(text: str) -> str:
    """What happened and where; the rest, such as the end of a log, is in the other reports."""
    lines = text.split("\n")
    return "\n".join([*lines[:LINES], *(["..."] if len(lines) > LINES else [])])


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
