"""Samples that other harnesses can read."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

from pytest_ddtree.coding.samples import Sample, write_samples

STUB = 'def total(xs):\n    """Sum."""\n'
CODE = "def total(xs):\n    return sum(xs)\n"


def test_every_answer_is_written(tmp_path: Path) -> None:
    path = tmp_path / "samples.jsonl"
    assert write_samples(path, [Sample("a/1", CODE), Sample("a/2", None)]) == 2
    records = [json.loads(line) for line in path.read_text().splitlines()]
    assert [record["task_id"] for record in records] == ["a/1", "a/2"]
    assert [record["solution"] for record in records] == [CODE, ""]
    assert [child.name for child in tmp_path.iterdir()] == ["samples.jsonl"]


def test_the_completion_completes_a_stub(tmp_path: Path) -> None:
    path = tmp_path / "samples.jsonl.gz"
    write_samples(path, [Sample("a/1", CODE), Sample("a/2", None)])
    right, missing = [json.loads(line) for line in gzip.decompress(path.read_bytes()).splitlines()]
    for record, result in [(right, 6), (missing, None)]:
        namespace: dict[str, Any] = {}
        exec(STUB + record["completion"], namespace)
        assert namespace["total"]([1, 2, 3]) == result
