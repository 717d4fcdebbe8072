"""What a session says at its end: the terminal, the HTML file, GitHub's summary, and pytest-json-report's file."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest

from pytest_ddtree.session import AB, GATED, PLAN, reported_of, settings_of

if TYPE_CHECKING:
    from pathlib import Path

    from pytest_ddtree.report.findings import Report


def summarise(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the tables and findings of the session, and write the reports that were asked for."""
    config = terminalreporter.config
    if AB in config.stash and config.stash[AB].folder.exists():
        from pytest_ddtree.results.secrets import scrub

        ab, secrets = config.stash[AB], secrets_of(config)
        terminalreporter.section("ddtree: builds")
        for outcome in ab.outcomes.values():
            for line in scrub(outcome.lines(), secrets):
                terminalreporter.write_line(line)
        report = ab.report()
        for line in scrub(ab.left_out, secrets):
            terminalreporter.write_line(line)
        terminalreporter.write_line(f"results: {ab.folder}")
        _to_files(terminalreporter, report, ab.folder, secrets)
    run, settings = reported_of(config), settings_of(config)
    if run is None or hasattr(config, "workerinput") or run.results.empty or settings.plan:
        return
    from pytest_ddtree.report.terminal import lines
    from pytest_ddtree.results.secrets import scrub

    secrets = secrets_of(config)
    terminalreporter.section("ddtree")
    for line in scrub(lines(run.results), secrets):
        terminalreporter.write_line(line)
    terminalreporter.write_line(f"results: {run.run_dir}")
    _to_files(terminalreporter, run.report(), run.run_dir, secrets)


def _to_files(
    terminalreporter: pytest.TerminalReporter, report: Report, folder: Path, secrets: tuple[str, ...]
) -> None:
    """The HTML page if it was asked for, then what GitHub reads. `folder` has the records that the report is of."""
    from pytest_ddtree.report import html
    from pytest_ddtree.results.secrets import scrub

    path = settings_of(terminalreporter.config).html
    if path is not None:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(scrub(html.page(report), secrets), "utf-8", errors="backslashreplace")
            terminalreporter.write_line(f"HTML report: {path}")
        except OSError as error:
            again = f"pytest-ddtree export {folder} --format html -o FILE writes it again"
            terminalreporter.write_line(f"HTML report: not written: {error}; {again}", red=True)
    _to_github(terminalreporter, report, secrets)


def _to_github(terminalreporter: pytest.TerminalReporter, report: Report, secrets: tuple[str, ...]) -> None:
    """The step summary where there is one, and annotations."""
    from pytest_ddtree.report import github
    from pytest_ddtree.report.findings import findings
    from pytest_ddtree.results.secrets import scrub

    try:
        summary = github.write_summary(report, secrets=secrets)
    except OSError as error:
        summary = None
        terminalreporter.write_line(f"GITHUB_STEP_SUMMARY: not written: {error}", red=True)
    if summary is not None or os.environ.get("GITHUB_ACTIONS") == "true":
        # A workflow command counts only at the beginning of a line.
        for line in scrub(github.commands(findings(report.results)), secrets):
            terminalreporter.write_line(line)


def secrets_of(config: pytest.Config) -> tuple[str, ...]:
    """What must not be seen in any report."""
    from pytest_ddtree.results.secrets import known_secrets

    return known_secrets(settings_of(config).api_key, os.environ)


class JsonReport:
    """Adds metrics, verdicts and environment to the report of pytest-json-report."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config

    @pytest.hookimpl(optionalhook=True)
    def pytest_json_runtest_metadata(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> dict[str, Any] | None:
        """Figures and gates of a test that measured a cell."""
        gated = item.stash.get(GATED, None)
        if gated is None or call.when != "call":
            return None
        from pytest_ddtree.report import jsonreport

        return jsonreport.cell_metadata(*gated)

    @pytest.hookimpl(optionalhook=True)
    def pytest_json_modifyreport(self, json_report: dict[str, Any]) -> None:
        if PLAN not in self._config.stash:
            return
        from pytest_ddtree.report import jsonreport
        from pytest_ddtree.report.lastfigures import update_tests

        secrets, run = secrets_of(self._config), reported_of(self._config)
        ab = self._config.stash.get(AB, None)
        if run is None and ab is not None and ab.begun:
            jsonreport.enrich(json_report, ab.report(), secrets=secrets, environment=os.environ)
        elif run is None:
            jsonreport.clean(json_report, secrets=secrets, environment=os.environ)
        else:
            update_tests(json_report, run.results)
            jsonreport.enrich(json_report, run.report(), secrets=secrets, environment=os.environ)
