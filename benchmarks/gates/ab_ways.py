"""Comparisons of two builds of the embedded server as a session makes them, stay by stay and with both up at once, in turns.

    python benchmarks/gates/ab_ways.py --out ways.jsonl --sessions 8 [--slower 10] [--ways stays at-once] [--cells 1,4]

Session by session the way changes, so that what else the machine does meets both alike; the build `patched` is slow (with
`--slower 0` none is). The table at the end says of each way how often the slow build was blamed, and nobody else, how wide the 95 %
interval of tok/s of all cells was and which loss it would have found, and what a session took (medians). Sessions are appended to
the file; called again it goes on where it was.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ab_sessions import read

from pytest_ddtree.ab import Ab
from pytest_ddtree.errors import Infrastructure
from pytest_ddtree.grid import CellKey, Config
from pytest_ddtree.options import make_settings
from pytest_ddtree.report.text import table
from pytest_ddtree.results.builds import parse_builds

CONFIG = Config("tree", 8, 4)
BUILDS = ("base", "patched")
WAYS = ("stays", "at-once")


def session(way: str, slow: str | None, options: argparse.Namespace) -> dict[str, Any]:
    """One comparison, by the rules of a session; what came out of it. Raises Infrastructure."""
    cells = tuple(CellKey(60, width) for width in options.cells)
    given = {
        "context": "60",
        "concurrency": ",".join(map(str, options.cells)),
        "output": str(options.output),
        "turnovers": str(options.turnovers),
        "rounds": str(options.rounds),
        "min_rounds": "2",
        "exactness_prompts": "4",
        "exactness_output": "16",
        "client_lag": "10",
        "ab_at_once": str(way == "at-once").lower(),
    }
    planted = f" --plant slower:{options.slower}"
    builds = [f"{name}=args:--log-level info{planted if name == slow else ''}" for name in BUILDS]
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        settings = make_settings(
            {name: (text, "here") for name, text in {**given, "results": folder}.items()}
        )
        ab = Ab(
            settings,
            parse_builds(builds, None),
            (CONFIG,),
            cells,
            passes=options.passes,
            progress=lambda text: None,
        )
        try:
            outcome = ab.outcome(CONFIG)
        finally:
            ab.close()
    (comparison,) = outcome.comparisons
    together = comparison.changes[0]
    value, low, high = together.ratio
    named = sorted({change.outcome for change in comparison.beyond_noise})
    expected = [] if slow is None else ["worse"]
    return {
        "way": way,
        "slow": slow,
        "named": named,
        "right": named == expected,
        "wrong": bool(set(named) - set(expected)),
        "confirmed": comparison.confirmed,
        "ratio": value,
        "half_width": math.log(high / low) / 2,
        "visible": together.visible,
        "unrest": comparison.unrest,
        "seconds": time.monotonic() - began,
    }


def lines(found: Sequence[Mapping[str, Any]]) -> list[str]:
    """One line a way."""
    head = [
        "way",
        "sessions",
        "right",
        "wrong",
        "not quiet",
        "+-",
        "would have found",
        "ratio",
        "least to most",
        "seconds",
    ]
    rows = []
    for way in WAYS:
        of_way = [one for one in found if one["way"] == way]
        if not of_way:
            continue

        def middle(name: str, of: Sequence[Mapping[str, Any]] = of_way) -> float:
            return statistics.median(one[name] for one in of)

        ratios = [one["ratio"] for one in of_way]
        rows.append(
            [
                way,
                str(len(of_way)),
                str(sum(one["right"] for one in of_way)),
                str(sum(one["wrong"] for one in of_way)),
                str(sum(one["unrest"] is not None for one in of_way)),
                f"{middle('half_width'):.1%}",
                f"{middle('visible'):.1%}",
                f"{middle('ratio'):.3f}",
                f"{min(ratios):.3f} to {max(ratios):.3f}",
                f"{middle('seconds'):.0f}",
            ]
        )
    return table(head, rows)


def whole(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(","))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--sessions", type=int, default=8, help="of each way")
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument(
        "--slower", type=int, default=10, metavar="PERCENT", help="how much longer a pass takes; 0: nobody's"
    )
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    parser.add_argument("--cells", type=whole, default=(1, 4), metavar="LIST", help="concurrencies")
    parser.add_argument("--passes", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=16)
    parser.add_argument("--turnovers", type=int, default=1)
    parser.add_argument("--output", type=int, default=32)
    options = parser.parse_args()
    until = time.monotonic() + 60 * options.minutes
    for number in range(options.sessions):
        for way in options.ways:
            found = read(options.out)
            if sum(one["way"] == way for one in found) > number or time.monotonic() > until:
                continue
            slow = BUILDS[1] if options.slower else None
            try:
                one = session(way, slow, options)
            except Infrastructure as error:
                # A session of a user would end in the same error, and blame nobody.
                print(f"{way} {number + 1}: {error}", flush=True)
                continue
            with options.out.open("a") as out:
                out.write(json.dumps({"schema": 1, "kind": "ab-way", **one}) + "\n")
            print(f"{way} {number + 1}: {json.dumps(one)}", flush=True)
    print("\n".join(lines(read(options.out))))


if __name__ == "__main__":
    main()
