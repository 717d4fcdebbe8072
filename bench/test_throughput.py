"""tok/s, TTFT, time per token and accept length of every config over context x concurrency."""

from __future__ import annotations

import pytest

pytestmark = [pytest.mark.bench]


def test_throughput(ddtree_server, ddtree_cell, ddtree_measure, ddtree_gate, benchmark):
    """One cell. pytest-benchmark carries it: one round around our own rounds, which travel in `extra_info`."""
    figures = benchmark.pedantic(ddtree_measure, args=(ddtree_cell,), rounds=1, iterations=1)
    benchmark.extra_info.update(figures.as_json())
    ddtree_gate(figures)
