"""What the client is to reach, and the table that says whether it did. Pure: figures in, text out."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Goal:
    """A limit on one figure of one of our readers, in every cell that `where` allows; the worst of them counts."""

    text: str
    figure: str
    limit: float
    reader: str
    streams: tuple[int, int] = (64, 256)
    """The fewest and the most streams of a cell that the goal is about."""
    per_chunk: tuple[int, ...] = (1, 4, 0)
    paced: bool = True
    """Of cells in which the server keeps a schedule; else of the one in which it sends as fast as possible."""
    bound: Literal["most", "least"] = "most"
    form: str = ".1f"


@dataclass(frozen=True)
class Measured:
    """Medians of one cell: reader -> figure -> value."""

    name: str
    streams: int
    per_chunk: int
    paced: bool
    figures: Mapping[str, Mapping[str, float]]


def goals(kernel: str, uvloop: str) -> tuple[Goal, ...]:
    """The goals, for the names of the two readers."""
    both = ((kernel, "kernel stamps"), (uvloop, "uvloop"))
    return (
        Goal("CPU us a chunk, uvloop, 64 to 256 streams", "cpu_us", 12, uvloop),
        Goal("CPU us a chunk, kernel stamps, 64 to 256 streams", "cpu_us", 25, kernel),
        Goal("stamp error p50 us, uvloop, 64 to 256 streams", "delay_p50_us", 300, uvloop, form=".0f"),
        Goal(
            "stamp error p50 us, kernel stamps, up to 128 streams",
            "delay_p50_us",
            10,
            kernel,
            (1, 128),
            form=".0f",
        ),
        Goal(
            "stamp error p99 us, kernel stamps, up to 128 streams",
            "delay_p99_us",
            100,
            kernel,
            (1, 128),
            form=".0f",
        ),
        *(
            Goal(f"TTFT error ms, {name}, 128 streams", "ttft_mean_ms", 1, reader, (128, 128), form="+.2f")
            for reader, name in both
        ),
        *(
            Goal(f"tok/s error %, {name}, all schedules", "rate_error_pct", 0.1, reader, form="+.3f")
            for reader, name in both
        ),
        *(
            Goal(
                f"time/token error %, {name}, all schedules", "token_time_error_pct", 0.1, reader, form="+.3f"
            )
            for reader, name in both
        ),
        *(
            Goal(
                f"chunks a second, {name}, as fast as possible",
                "chunks_per_s",
                60_000,
                reader,
                paced=False,
                bound="least",
                form=",.0f",
            )
            for reader, name in both
        ),
    )


def worst(goal: Goal, cells: Sequence[Measured], reader: str) -> tuple[float, Measured] | None:
    """A reader's worst value of a goal's figure, and the cell; None where no cell told it."""
    told = [
        (cell.figures[reader][goal.figure], cell)
        for cell in cells
        if cell.paced == goal.paced
        and goal.streams[0] <= cell.streams <= goal.streams[1]
        and cell.per_chunk in goal.per_chunk
        and not math.isnan(cell.figures.get(reader, {}).get(goal.figure, math.nan))
    ]
    if not told:
        return None
    # An error may be early or late; how far off it is counts.
    return (min if goal.bound == "least" else max)(told, key=lambda one: abs(one[0]))


def is_met(goal: Goal, value: float) -> bool:
    """Whether a value keeps within the goal's limit."""
    return abs(value) >= goal.limit if goal.bound == "least" else abs(value) <= goal.limit


def table(
    wanted: Sequence[Goal], cells: Sequence[Measured], peers: Sequence[str], starts: Mapping[str, float]
) -> str:
    """Each goal with what was reached, in which cell, and the peers' own worst of the same cells.

    `starts` are CPU seconds of a process that reads one chunk: the start of the client has a goal too.
    """
    lines = [
        f"| figure (the worst of its cells) | goal | ours | | {' | '.join(peers)} |",
        f"|---|---|---|---|{'---|' * len(peers)}",
    ]
    for goal in wanted:
        ours = worst(goal, cells, goal.reader)
        beside = [worst(goal, cells, peer) for peer in peers]
        limit = f"{goal.limit:,g} or {'more' if goal.bound == 'least' else 'less'}"
        lines.append(
            f"| {goal.text} | {limit} | {_said(goal, ours, named=True)} | "
            f"{'not run' if ours is None else 'met' if is_met(goal, ours[0]) else 'MISSED'} | "
            f"{' | '.join(_said(goal, one) for one in beside)} |"
        )
    for reader in dict.fromkeys(goal.reader for goal in wanted):
        own = starts.get(reader)
        told = "" if own is None else f"{own:.2f}"
        verdict = "not run" if own is None else "met" if own <= START_S else "MISSED"
        others = " | ".join(f"{starts[peer]:.2f}" if peer in starts else "" for peer in peers)
        lines.append(
            f"| start to one chunk read, CPU s, {reader} | {START_S} or less | {told} | {verdict} | {others} |"
        )
    return "\n".join(lines)


START_S = 0.3
"""CPU seconds from the start of the interpreter to the first byte sent; what is measured includes the answer and the exit."""


def _said(goal: Goal, value: tuple[float, Measured] | None, *, named: bool = False) -> str:
    if value is None:
        return ""
    shown = format(value[0], goal.form)
    return f"{shown} ({value[1].name})" if named and goal.paced else shown
