"""The table that says which of the client's goals were met."""

from __future__ import annotations

import math

from benchmarks.client.goals import Goal, Measured, goals, is_met, table, worst

KERNEL, UVLOOP, PEER = "ours, kernel stamps", "ours, uvloop", "peer"


def cell(streams: int, per_chunk: int = 1, *, paced: bool = True, **figures: float) -> Measured:
    usual = {
        "cpu_us": 5.0,
        "delay_p50_us": 2.0,
        "delay_p99_us": 20.0,
        "ttft_mean_ms": 0.1,
        "rate_error_pct": 0.01,
        "token_time_error_pct": -0.01,
        "chunks_per_s": 100_000.0,
    }
    ours = usual | figures
    return Measured(
        f"{streams} streams", streams, per_chunk, paced, {KERNEL: ours, UVLOOP: ours, PEER: {"cpu_us": 50.0}}
    )


def line_of(shown: str, start: str) -> str:
    (line,) = [line for line in shown.splitlines() if line.startswith(f"| {start}")]
    return line


def test_the_worst_cell_that_a_goal_is_about_counts() -> None:
    cells = [cell(64, cpu_us=11), cell(128, cpu_us=13), cell(8, cpu_us=90), cell(64, paced=False, cpu_us=99)]
    goal = Goal("cpu", "cpu_us", 12, UVLOOP)
    found = worst(goal, cells, UVLOOP)
    assert found is not None
    assert found[0] == 13
    assert found[1].name == "128 streams"
    assert not is_met(goal, 13)
    assert is_met(goal, 12)


def test_an_error_may_lie_on_either_side() -> None:
    goal = Goal("rate", "rate_error_pct", 0.1, KERNEL)
    found = worst(goal, [cell(64, rate_error_pct=0.05), cell(128, 4, rate_error_pct=-0.2)], KERNEL)
    assert found is not None
    assert found[0] == -0.2
    assert not is_met(goal, -0.2)


def test_every_row_says_met_or_missed_beside_the_goal_and_the_peers() -> None:
    cells = [cell(64, cpu_us=13.0), cell(128), cell(128, 4), cell(64, paced=False, chunks_per_s=59_000.0)]
    shown = table(goals(KERNEL, UVLOOP), cells, [PEER], {KERNEL: 0.2, UVLOOP: 0.4})
    assert "| 12 or less | 13.0 (64 streams) | MISSED | 50.0 |" in line_of(shown, "CPU us a chunk, uvloop")
    assert "| 25 or less | 13.0 (64 streams) | met | 50.0 |" in line_of(shown, "CPU us a chunk, kernel")
    assert "| 60,000 or more | 59,000 | MISSED |  |" in line_of(shown, "chunks a second, uvloop")
    assert "| 0.20 | met |" in line_of(shown, "start to one chunk read, CPU s, ours, kernel")
    assert "| 0.40 | MISSED |" in line_of(shown, "start to one chunk read, CPU s, ours, uvloop")
    assert "not run" not in shown


def test_what_was_not_measured_is_not_met() -> None:
    shown = table(goals(KERNEL, UVLOOP), [cell(64, delay_p50_us=math.nan)], [], {})
    assert "| not run |" in line_of(shown, "stamp error p50 us, uvloop")
    assert "| not run |" in line_of(shown, "TTFT error ms, uvloop")
    assert "| not run |" in line_of(shown, "start to one chunk read, CPU s, ours, uvloop")
