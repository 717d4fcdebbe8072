"""Many sessions of A B B A on the embedded server: how often a planted slow-down is found, and how often nothing is called something.

    python benchmarks/gates/ab_sessions.py --out ab.jsonl --minutes 50 [--sessions 20] [--what all cell none] [--percent 4 12] [--pin]

`all`: the passes of one build take longer in all cells, and that build alone must be called slower. `cell`: in one cell only, which
must be named, and no other. `none`: nothing is planted; any change that is called one is a false alarm. The slow build is `patched` in
even sessions and `base` in odd ones. Sessions are appended to the file as they end; called again it goes on where it was, and stops
when the time is up or there are enough sessions of each sort. The table at the end has all sessions of the file.

A pass is not all of a request's time, so that passes of 4 % more cost tok/s about 3 %: the table says what was lost.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ab_embedded import (
    BUILDS,
    CELLS,
    CONFIG,
    Length,
    Planted,
    add_length,
    design,
    pinned,
    run_session,
)

from pytest_ddtree.results.change import Comparison
from pytest_ddtree.results.store import parse
from pytest_ddtree.workload.cell import CellNotMeasured

CELL = CELLS[3]
assert (CONFIG.id, CELL) in design(2, 4).headline, (
    "a loss of one cell is promised to be found in a headline cell"
)
KINDS = ("all", "cell", "none")


def planted(what: str, number: int, percent: Mapping[str, int]) -> Planted | None:
    """What a session plants."""
    if what == "none":
        return None
    build = BUILDS[1 - number % 2]
    return Planted(build, percent[what], CELL if what == "cell" else None)


def judged(what: str, slow: Planted | None, comparison: Comparison) -> dict[str, Any]:
    """Whether a session said what it should have said."""
    named = [(change.where, change.metric.name, change.outcome) for change in comparison.beyond_noise]
    outcome = None if slow is None else "worse" if slow.build == BUILDS[1] else "better"
    cell = f"{CONFIG.id} {CELL.id}"
    if what == "none":
        right = not named
    elif what == "all":
        # By all cells together or by some of them: a session ends with the first that is found.
        right = bool(named) and {found for _, _, found in named} == {outcome}
    else:
        # The others are as they were, whatever the mean of all cells says.
        cells = {where for where, _, _ in named if where != comparison.changes[0].where}
        right = (cell, "tok_s", outcome) in named and cells == {cell}
    of_cell = next(
        (one for one in comparison.changes if one.where == cell and one.metric.name == "tok_s"),
        comparison.changes[0],
    )
    lost = (of_cell if what == "cell" else comparison.changes[0]).ratio
    return {
        "what": what,
        "slow": None if slow is None else slow.build,
        "right": right,
        "named": named,
        "ratio": list(lost),
        "unrest": comparison.unrest,
    }


def table(found: Sequence[Mapping[str, Any]]) -> list[str]:
    """One line a sort of session."""
    text = ["what    sessions  as it should be  not quiet  tok/s of the slow build, mean (least to most)"]
    for what in KINDS:
        sessions = [one for one in found if one["what"] == what]
        if not sessions:
            continue
        right = sum(one["right"] for one in sessions)
        restless = sum(one["unrest"] is not None for one in sessions)
        ratios = sorted(
            one["ratio"][0] if one["slow"] != BUILDS[0] else 1 / one["ratio"][0] for one in sessions
        )
        mean = sum(ratios) / len(ratios)
        text.append(
            f"{what:<6}  {len(sessions):>8}  {right:>15}  {restless:>9}  "
            f"x {mean:.3f} ({ratios[0]:.3f} to {ratios[-1]:.3f})"
        )
    return text


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=50)
    parser.add_argument("--sessions", type=int, default=20, help="of each sort")
    parser.add_argument("--what", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--percent", type=int, nargs=2, default=[4, 12], metavar=("ALL", "CELL"))
    parser.add_argument("--passes", type=int, default=2)
    add_length(parser)
    options = parser.parse_args()
    percent = dict(zip(("all", "cell"), options.percent, strict=True))
    prefix = pinned() if options.pin else ()
    length = Length(options.rounds, options.turnovers, options.output, options.lag)
    until = time.monotonic() + 60 * options.minutes
    longest = 0.0
    found = read(options.out)
    for number in range(options.sessions):
        for what in options.what:
            if sum(one["what"] == what for one in found) > number:
                continue
            began = time.monotonic()
            if began + longest > until:
                break
            slow = planted(what, number, percent)
            try:
                comparison, passes = run_session(slow, passes=options.passes, length=length, prefix=prefix)
            except CellNotMeasured as error:
                # Other work held the client up: a session of a user would end in the same error, and blame nobody.
                print(f"{what} {number + 1}: {error}", flush=True)
                continue
            took = time.monotonic() - began
            longest = max(longest, took)
            found.append(
                {
                    **judged(what, slow, comparison),
                    "length": asdict(length),
                    "passes": passes,
                    "seconds": took,
                }
            )
            with options.out.open("a") as out:
                out.write(json.dumps({"schema": 1, "kind": "ab-session", **found[-1]}) + "\n")
            print(
                f"{what} {number + 1}: {'as it should be' if found[-1]['right'] else 'NOT'} in {took:.0f} s",
                flush=True,
            )
    print("\n".join(table(found)))


def read(path: Path) -> list[dict[str, Any]]:
    """The sessions of the file. An unfinished last line is cut off."""
    if not path.exists():
        return []
    data = path.read_bytes()
    stored = parse(data, str(path))
    if stored.torn:
        path.write_bytes(data[: stored.whole_bytes])
    return [dict(record) for record in stored.records]


if __name__ == "__main__":
    main()
