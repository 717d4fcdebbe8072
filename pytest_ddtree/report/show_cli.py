"""`pytest-ddtree show`: the tables of a stored run, or the list of runs."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from pytest_ddtree.errors import Infrastructure
from pytest_ddtree.report.findings import Report, findings
from pytest_ddtree.report.rows import condition_rows
from pytest_ddtree.report.terminal import lines
from pytest_ddtree.report.text import table
from pytest_ddtree.results.model import Results
from pytest_ddtree.results.runs import SESSION, NoSuchRun, StoredRun, find_runs, pick_run, read_run, scope_of


def add_directory(parser: argparse.ArgumentParser) -> None:
    """The option that says where runs are."""
    parser.add_argument(
        "--results",
        type=Path,
        default=Path(".ddtree"),
        metavar="DIR",
        help="directory of the results (default: .ddtree)",
    )


def passed_over(stored: StoredRun) -> str:
    """A line on the end of a record that was cut off."""
    return f"{stored.torn} bytes of an unfinished last record were passed over"


def run(argv: Sequence[str]) -> int:
    """Print; 0 when there was something, 2 when there was no such run or it cannot be read."""
    parser = argparse.ArgumentParser(prog="pytest-ddtree show", description=__doc__)
    parser.add_argument(
        "run", nargs="?", help="`last`, `last-1`, a run's name or path; without it the runs are listed"
    )
    add_directory(parser)
    options = parser.parse_args(argv)
    try:
        if options.run is None:
            return _list(options.results)
        stored = read_run(pick_run(options.results, options.run))
    except (NoSuchRun, Infrastructure) as error:
        print(f"pytest-ddtree show: {error}", file=sys.stderr)
        return 2
    report = Report.of(stored)
    # Starts, drift and time are among the tables.
    for name, value in condition_rows(replace(report, results=Results())):
        print(f"{name}: {value}")
    print()
    found = [f"{finding.weight}: {finding.text}" for finding in findings(report.results)]
    # A session ends with its warnings; here they stand above.
    print("\n".join([*found, *(line for line in lines(stored.results) if line not in found)]))
    for build, results in stored.builds.items():
        print("\n".join(["", f"build {build}", *lines(results)]))
    if stored.torn:
        print(passed_over(stored))
    return 0


def _gpu(stored: StoredRun) -> str:
    """What the run was measured on; a comparison has a fingerprint of each build."""
    scopes = [scope_of(SESSION, build) for build in (None, *stored.builds)]
    names = [stored.fingerprints[scope].get("gpu.name") for scope in scopes if scope in stored.fingerprints]
    return "; ".join(dict.fromkeys(str(name) for name in names if name)) or "unknown"


def _list(directory: Path) -> int:
    runs = find_runs(directory)
    if not runs:
        print(f"no runs under {directory}")
        return 2
    rows = []
    for path in runs:
        try:
            stored = read_run(path)
        except Infrastructure as error:
            rows.append([path.parent.name, "", "", "", str(error)])
            continue
        sides = [stored.results, *stored.builds.values()]
        configs = dict.fromkeys(config for side in sides for config, _ in side.cells)
        rows.append(
            [
                stored.id,
                str(len(stored.rounds)),
                str(sum(len(side.cells) for side in sides)),
                _gpu(stored),
                ", ".join(configs) or "nothing measured",
            ]
        )
    print("\n".join(table(["run", "rounds", "cells", "GPU", "configs"], rows)))
    return 0
