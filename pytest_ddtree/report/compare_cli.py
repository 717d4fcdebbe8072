"""`pytest-ddtree compare`: two stored runs, or the builds of one, beside each other."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence

from pytest_ddtree.errors import Infrastructure
from pytest_ddtree.report.comparison import lines, verdict_lines
from pytest_ddtree.report.show_cli import add_directory
from pytest_ddtree.results.compare import Comparison, compare, setting_differences
from pytest_ddtree.results.runs import NoSuchRun, StoredRun, pick_run, read_run


def run(argv: Sequence[str]) -> int:
    """Print; 0 when nothing got worse beyond noise, 1 when something did, 2 when the two cannot be compared."""
    parser = argparse.ArgumentParser(
        prog="pytest-ddtree compare",
        description="Ratios of every cell that both sides have, with intervals. One run: its builds are compared.",
    )
    parser.add_argument("before", help="`last`, `last-1`, a run's name or path")
    parser.add_argument("now", nargs="?", help="the other run; without it the builds of the one run")
    parser.add_argument(
        "--anyway", action="store_true", help="compare although hardware, models or workload differ"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    add_directory(parser)
    options = parser.parse_args(argv)
    try:
        before = read_run(pick_run(options.results, options.before))
        if options.now is None:
            return _builds(before, as_json=options.json)
        now = read_run(pick_run(options.results, options.now))
    except (NoSuchRun, Infrastructure) as error:
        print(f"pytest-ddtree compare: {error}", file=sys.stderr)
        return 2
    unlike = setting_differences(before, now)
    if unlike:
        print("these runs are not of the same hardware, models and workload:", file=sys.stderr)
        for difference in unlike:
            print(f"  {difference}", file=sys.stderr)
        if not options.anyway:
            print("not compared; --anyway does it all the same", file=sys.stderr)
            return 2
    return _print(
        compare(before.results, now.results, names=(before.id, now.id), same_session=False),
        as_json=options.json,
    )


def _builds(stored: StoredRun, *, as_json: bool) -> int:
    names = list(stored.builds)
    if len(names) < 2:
        print(f"pytest-ddtree compare: {stored.id} has no two builds; name a second run", file=sys.stderr)
        return 2
    base, *others = names
    worst = 0
    for other in others:
        comparison = compare(
            stored.builds[base],
            stored.builds[other],
            names=(base, other),
            same_session=True,
            starts=(starts_of(stored, base), starts_of(stored, other)),
            block_rounds=stored.block_rounds,
        )
        worst = max(worst, _print(comparison, as_json=as_json))
    if not as_json:
        print("\n".join(["", *verdict_lines(stored.judged)]))
    if any(not verdict.passed for _, _, verdict in stored.judged):
        worst = 1
    return worst


def starts_of(stored: StoredRun, build: str) -> int:
    """How many starts stand behind the rounds of a build's busiest config; 1 where nobody wrote it down."""
    seen: dict[str, set[int | None]] = {}
    for one in stored.rounds:
        if one.build == build:
            seen.setdefault(one.config, set()).add(one.start_no)
    return max((len(starts) for starts in seen.values()), default=1)


def _print(comparison: Comparison, *, as_json: bool) -> int:
    if as_json:
        value = {
            "before": comparison.before,
            "now": comparison.now,
            "unrest": comparison.unrest,
            "changes": [change.as_json() for change in comparison.changes],
        }
        print(json.dumps(value, indent=1))
    else:
        print("\n".join(lines(comparison)))
    return int(any(change.outcome == "worse" for change in comparison.changes))
