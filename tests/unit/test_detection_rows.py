"""The file of results of the detection matrix."""

from __future__ import annotations

from pathlib import Path

from benchmarks.exactness.detection_matrix import append, read


def test_a_line_that_a_crash_cut_costs_itself_alone(tmp_path: Path) -> None:
    results = tmp_path / "folder" / "rows.jsonl"
    append(results, {"fault": "one"})
    with results.open("a") as file:
        file.write('{"fault": "cu')
    append(results, {"fault": "two"})
    append(results, {"fault": "three"})
    assert [row["fault"] for row in read(results)] == ["one", "two", "three"]
