"""`pytest-ddtree compare`: two stored runs, or the builds of one, beside each other."""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from pytest_ddtree.errors import Infrastructure
from pytest_ddtree.grid import CellKey
from pytest_ddtree.report.comparison import fault_line, lines, unrest_line, verdict_lines
from pytest_ddtree.report.findings import Report, unfinished
from pytest_ddtree.report.show_cli import add_directory, passed_over
from pytest_ddtree.results.change import Comparison
from pytest_ddtree.results.compare import compare, setting_differences
from pytest_ddtree.results.gaps import Gap, gaps
from pytest_ddtree.results.gate_setup import restart_spread
from pytest_ddtree.results.model import is_baseline
from pytest_ddtree.results.runs import NoSuchRun, StoredRun, pick_run, read_run
from pytest_ddtree.results.selectors import SelectorError, headline_cells
from pytest_ddtree.results.store import StoreCorrupt
from pytest_ddtree.results.taking_turns import AbDesign


def run(argv: Sequence[str]) -> int:
    """Print; 0 when nothing is proven worse (what is undecided is said), 1 when something is, or corrupt, 2 when what should be
    compared cannot be, or in part: nothing is on both sides, or something is missing, ended in an error or was not judged."""
    parser = argparse.ArgumentParser(
        prog="pytest-ddtree compare",
        description="Ratios of every cell that both sides have, with intervals. One run: its builds are compared.",
        epilog="Exit code: 0 nothing worse, 1 something worse or corrupt, 2 what should be compared was not, or not all of it.",
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
        before = _read(options.results, options.before)
        if options.now is None:
            return _builds(before, as_json=options.json)
        now = _read(options.results, options.now)
    except (NoSuchRun, Infrastructure) as error:
        print(f"pytest-ddtree compare: {error}", file=sys.stderr)
        return 2
    for stored in (before, now):
        if stored.builds:
            print(
                f"pytest-ddtree compare: {stored.id} is a comparison of builds itself, not of one build with another run; "
                f"`pytest-ddtree compare {options.before if stored is before else options.now}` shows it",
                file=sys.stderr,
            )
            return 2
    unlike = setting_differences(before, now)
    if unlike:
        print("these runs are not of the same hardware, models and workload:", file=sys.stderr)
        for difference in unlike:
            print(f"  {difference}", file=sys.stderr)
        if not options.anyway:
            print("not compared; --anyway does it all the same", file=sys.stderr)
            return 2
    found = compare(
        before.results,
        now.results,
        names=(before.id, now.id),
        same_session=False,
        spread=restart_spread(options.results, now),
        headline=_headline(now, [cell for cell in now.results.cells if cell in before.results.cells]),
    )
    left = gaps(before, now, found)
    worse = _print([("", found)], left, as_json=options.json)
    if worse or any(gap.code == 1 for gap in left):
        return 1
    return 2 if not found.changes or any(gap.code for gap in left) else 0


def _read(directory: Path, name: str) -> StoredRun:
    """A run by its name; says on stderr where its record was cut off. Raises NoSuchRun, Infrastructure."""
    stored = read_run(pick_run(directory, name))
    if stored.torn:
        print(f"pytest-ddtree compare: {stored.id}: {passed_over(stored)}", file=sys.stderr)
    return stored


def _builds(stored: StoredRun, *, as_json: bool) -> int:
    names = list(stored.builds)
    if len(names) < 2:
        why = (
            "compares builds, and ended before two of them were measured"
            if stored.ab
            else "has no two builds; name a second run"
        )
        print(f"pytest-ddtree compare: {stored.id} {why}", file=sys.stderr)
        return 2
    base, *others = names
    design = _design(stored)
    faulty = {(build, config) for build, config, _ in stored.faults}
    comparisons = [
        (
            config,
            design.compare(
                stored.builds[base],
                stored.builds[other],
                config=config,
                names=(base, other),
                passes=passes_of(stored, (base, other), config, design.rounds),
            ),
        )
        for other in others
        for config in _compared(stored)
        if not {(base, config), (other, config)} & faulty
    ]
    worst = _print(comparisons, as_json=as_json)
    if not as_json:
        print("\n".join(["", *verdict_lines(stored.judged)]))
        for build, config, text in stored.faults:
            print(fault_line(build, config, text))
        # How quiet the machine was, whose answers loop and whose starts take longer is said above.
        said = (
            *(line for _, one in comparisons if (line := unrest_line(one)) is not None),
            *(note for _, one in comparisons for note in one.notes),
        )
        for text in Report.of(stored).results.warnings:
            if not said or not text.endswith(said):
                print(text)
    if stored.faults or any(verdict.kind == "corrupt" for _, _, verdict in stored.judged):
        return 1
    errors = [one for one in stored.results.failing.values() if one.outcome == "error"]
    for one in errors:
        print(f"error: {one.nodeid.rpartition('::')[2]}: {one.text.splitlines()[0]}", file=sys.stderr)
    # What ended in an error, was interrupted, or could not be judged, was not compared, or not enough.
    unjudged = any(verdict.kind == "unknown" for _, _, verdict in stored.judged)
    idle = [config for config, one in comparisons if not one.changes] if comparisons else ["no config"]
    if not comparisons:
        print(f"pytest-ddtree compare: {stored.id}: no config was measured on a build", file=sys.stderr)
    return worst or (2 if errors or unjudged or idle or unfinished(stored) else 0)


def _compared(stored: StoredRun) -> dict[str, list[CellKey]]:
    """The configs that were measured on builds, and the cells of each."""
    found: dict[str, list[CellKey]] = {}
    for results in stored.builds.values():
        for config, key in results.cells:
            if not is_baseline(config) and key not in found.setdefault(config, []):
                found[config].append(key)
    return found


def _design(stored: StoredRun) -> AbDesign:
    """How the builds were compared.

    Raises:
        StoreCorrupt: the record of it cannot be read.
    """
    # A run that was never completed may lack the record: then its rounds are all that one stay measured.
    most = 1 + max((one.number for one in stored.rounds), default=0)
    record = stored.ab or {"rounds": most, "passes": 2}
    try:
        return AbDesign.from_json(record, _compared(stored))
    except (KeyError, TypeError, ValueError) as error:
        raise StoreCorrupt(
            f"{stored.path}: a record of kind 'ab' that cannot be read ({type(error).__name__}: {error})"
        ) from None


def passes_of(stored: StoredRun, builds: tuple[str, str], config: str, rounds: int) -> tuple[int, int]:
    """How many whole passes of so many rounds a cell each of two builds has of a config, at least 1; each is a start of its own.

    Of the cells that both have: one that the other cannot hold is measured no further.
    """
    numbers: dict[str, dict[CellKey, Counter[int]]] = {build: {} for build in builds}
    for one in stored.rounds:
        if one.build in numbers and (one.config, one.again) == (config, 0):
            numbers[one.build].setdefault(one.key, Counter())[one.number // rounds] += 1
    left, right = (numbers[build] for build in builds)
    both = left.keys() & right.keys()
    whole = [
        [sum(count >= rounds for count in cells[key].values()) for key in both] for cells in (left, right)
    ]
    before, now = (max(1, min(each, default=1)) for each in whole)
    return before, now


def _headline(stored: StoredRun, shared: Sequence[tuple[str, CellKey]]) -> tuple[tuple[str, CellKey], ...]:
    """The cells that the run declared, of those that both runs have; where it declared none, or others, what is the default of these."""
    configs = list(dict.fromkeys(config for config, _ in shared))
    cells = sorted({key for _, key in shared})
    named = stored.settings.get("headline") or ()
    try:
        return headline_cells(tuple(map(str, named)), configs, cells)
    except SelectorError:
        return headline_cells((), configs, cells)


def _print(
    comparisons: Sequence[tuple[str, Comparison]], left: Sequence[Gap] | None = None, *, as_json: bool
) -> int:
    """Print all of them, and what a comparison of runs leaves out; 1 when something got worse. JSON is one object, or a list of several."""
    if as_json:
        values = [
            {
                **({"config": config} if config else {}),
                "before": one.before,
                "now": one.now,
                "unrest": one.unrest,
                "confirmed": one.confirmed,
                "looping": {
                    "before": [one.looping.before, one.looping.before_of],
                    "now": [one.looping.now, one.looping.now_of],
                },
                "undecided": len(one.undecided),
                "only_before": list(one.only_before),
                "only_now": list(one.only_now),
                **({} if left is None else {"gaps": [gap.as_json() for gap in left]}),
                "changes": [change.as_json() for change in one.changes],
            }
            for config, one in comparisons
        ]
        print(json.dumps(values[0] if len(values) == 1 else values, indent=1))
    else:
        several = len({config for config, _ in comparisons}) > 1
        for config, one in comparisons:
            print("\n".join([*([f"{config}:"] if several else []), *lines(one, left)]))
    return int(any(one.worse for _, one in comparisons))
