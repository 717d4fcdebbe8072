"""`pytest-ddtree export`: a stored run as CSV, JSON, HTML or Markdown."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from pytest_ddtree.errors import Infrastructure
from pytest_ddtree.report import export, github, html
from pytest_ddtree.report.findings import Report
from pytest_ddtree.report.show_cli import add_directory, passed_over
from pytest_ddtree.results.runs import NoSuchRun, StoredRun, pick_run, read_run

FORMATS: Mapping[str, Callable[[StoredRun], str]] = {
    "csv": export.cells_csv,
    "rounds-csv": export.rounds_csv,
    "json": export.as_json,
    "html": lambda stored: html.page(Report.of(stored)),
    "markdown": lambda stored: github.markdown(Report.of(stored)),
}


def run(argv: Sequence[str]) -> int:
    """Write; 0 when it was written, 2 when there was no such run or no place for it."""
    parser = argparse.ArgumentParser(prog="pytest-ddtree export", description=__doc__)
    parser.add_argument("run", help="`last`, `last-1`, a run's name or path")
    parser.add_argument(
        "--format", choices=sorted(FORMATS), default="csv", help="csv: one row a cell (default)"
    )
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="default: standard output")
    add_directory(parser)
    options = parser.parse_args(argv)
    try:
        stored = read_run(pick_run(options.results, options.run))
        if stored.torn:
            print(f"pytest-ddtree export: {stored.id}: {passed_over(stored)}", file=sys.stderr)
        text = FORMATS[options.format](stored)
        if options.output is not None:
            options.output.write_text(text, "utf-8", errors="backslashreplace")
    except (NoSuchRun, Infrastructure, OSError) as error:
        print(f"pytest-ddtree export: {error}", file=sys.stderr)
        return 2
    if options.output is None:
        sys.stdout.write(text)
    return 0
