"""pytest-benchmark's files carry our rounds and say which machine they are of; those of another GPU are not compared with."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from suite import SMALL, run

BENCH = ("-m", "bench", "-k", "throughput and baseline", *SMALL)


@pytest.mark.slow
def test_a_file_carries_the_rounds_and_is_compared_with_its_own_machine_alone(tmp_path: Path) -> None:
    saved = tmp_path / "storage" / "0001_one.json"
    saved.parent.mkdir()
    first = run(*BENCH, f"--benchmark-json={saved}", results=tmp_path)
    assert first.code == 0, first.output
    carried = json.loads(saved.read_text())
    ours = carried["machine_info"]["ddtree"]
    assert {"gpu.name", "engine.kind", "engine.sources", "model.weights", "draft.weights"} <= set(ours)
    assert not [name for name in carried["machine_info"]["cpu"] if name.startswith("hz_actual")]
    (benchmark,) = carried["benchmarks"]
    assert len(benchmark["extra_info"]["tok_s"]["rounds"]) == 2
    assert benchmark["extra_info"]["cell"] == "ctx60-c2"

    compare = (*BENCH, f"--benchmark-storage=file://{saved.parent}", f"--benchmark-compare={saved}")
    same = run(*compare, "--collect-only", results=tmp_path)
    assert same.code == 0, same.output

    ours["gpu.name"] = "NVIDIA H200"
    saved.write_text(json.dumps(carried))
    other = run(*compare, results=tmp_path)
    assert other.code == 4, other.output
    assert "gpu.name: was NVIDIA H200" in other.output
    assert "Traceback" not in other.output
    assert not (tmp_path / "junit.xml").read_text().count("testcase") > 1
