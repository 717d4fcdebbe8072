"""Figures of a cell from records whose figures are known."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_ddtree.client.records import Record
from pytest_ddtree.workload.load import Load
from pytest_ddtree.workload.measure import (
    CellMeasurement,
    Distribution,
    bound,
    chunk_gaps,
    covered_s,
    measure,
    percentile,
)
from pytest_ddtree.workload.selfcheck import ClientLoad, lateness


def load_of(*records: Record, concurrency: int = 1, wall_ms: float = 1000.0, not_sent: int = 0) -> Load:
    return Load(
        records=records, concurrency=concurrency, start_ns=0, end_ns=int(wall_ms * 1e6), not_sent=not_sent
    )


def test_tokens_are_counted_and_chunks_are_not(record: Any) -> None:
    # Four tokens a chunk every 20 ms after a first chunk of four at 100 ms: 5 ms a token, gaps of 20 ms.
    one = record([(100 + 20 * step, 4 * (step + 1)) for step in range(6)], prompt_tokens=50, spec_verify_ct=6)
    cell = measure(load_of(one, wall_ms=200))
    assert cell.output_tokens == 24
    assert cell.output_tok_s == pytest.approx(120.0)
    assert cell.decode_tok_s == pytest.approx(20 / 0.1)
    assert cell.time_per_token is not None
    assert cell.time_per_token.mean == pytest.approx(0.005)
    assert cell.mean_time_per_token_s == pytest.approx(0.005)
    assert cell.chunk_gap is not None
    assert (cell.chunk_gap.n, cell.chunk_gap.p50) == (5, pytest.approx(0.02))
    assert cell.ttft is not None
    assert cell.ttft.mean == pytest.approx(0.1)
    assert cell.accept_length == 4.0
    assert cell.prefill_tok_s == pytest.approx(500.0)


def test_a_stall_in_one_stream_is_seen_in_the_gaps(record: Any) -> None:
    smooth = record([(10 * step, step) for step in range(1, 51)])
    stalled = record([(10 * step + (1000 if step > 25 else 0), step) for step in range(1, 51)])
    cell = measure(load_of(smooth, stalled, concurrency=2, wall_ms=1500))
    assert cell.chunk_gap is not None
    assert cell.chunk_gap.maximum == pytest.approx(1.01)
    assert cell.chunk_gap.p50 == pytest.approx(0.01)


def test_failed_answers_are_counted_shown_and_left_out(record: Any) -> None:
    good = record([(100, 1), (200, 2)], spec_verify_ct=2)
    cut = record([(100, 1)], outcome="cut")
    cell = measure(load_of(good, cut, concurrency=2, not_sent=3))
    assert (cell.requests, cell.ok, cell.output_tokens) == (5, 1, 2)
    assert cell.failures == {"cut": 1, "not_sent": 3}
    assert cell.errors == ("made: cut: broke",)
    assert cell.accept_length == 1.0


def test_accept_length_is_all_tokens_over_all_steps(record: Any) -> None:
    long = record([(10, 1), (20, 90)], spec_verify_ct=30)
    short = record([(10, 1), (20, 10)], spec_verify_ct=10)
    assert measure(load_of(long, short)).accept_length == 2.5


def test_accept_length_needs_the_steps_of_every_answer(record: Any) -> None:
    told, silent = record([(10, 4)], spec_verify_ct=2), record([(10, 4)])
    assert measure(load_of(told, silent)).accept_length is None


def test_a_load_without_answers_has_no_rates(record: Any) -> None:
    cell = measure(load_of(record([], outcome="reset")))
    assert (cell.output_tok_s, cell.decode_tok_s, cell.ttft, cell.accept_length) == (0.0, None, None, None)


def test_decoding_time_is_the_time_in_which_any_request_decodes(record: Any) -> None:
    one, other = record([(100, 1), (300, 3)]), record([(200, 1), (400, 3)])
    apart = record([(600, 1), (700, 2)])
    assert covered_s([one, other, apart]) == pytest.approx(0.4)
    cell = measure(load_of(one, other, apart, concurrency=2))
    assert cell.decode_tok_s == pytest.approx(5 / 0.4)
    assert cell.prefill_tok_s is None


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=50), st.floats(0, 1))
def test_percentiles_are_numpys(values: list[float], share: float) -> None:
    ordered = sorted(values)
    assert percentile(ordered, share) == pytest.approx(float(np.quantile(ordered, share)), rel=1e-9, abs=1e-9)


def test_a_distribution_of_nothing_is_none() -> None:
    assert Distribution.of([]) is None
    assert Distribution.of([3.0]) == Distribution(1, 3.0, 3.0, 3.0, 3.0, 3.0)


@given(st.lists(st.tuples(st.integers(1, 500), st.integers(1, 8)), min_size=1, max_size=30))
def test_sums_hold_for_any_stream(steps: list[tuple[int, int]]) -> None:
    times = np.cumsum([gap for gap, _ in steps])
    counts = np.cumsum([tokens for _, tokens in steps])
    chunks = tuple((float(at), int(count)) for at, count in zip(times, counts, strict=True))
    from pytest_ddtree.client.records import Chunk, Request, Sampling

    one = Record(
        request=Request(sampling=Sampling(max_new_tokens=1), input_ids=(1,)),
        outcome="ok",
        sent_ns=0,
        end_ns=int(times[-1] * 1e6),
        chunks=tuple(Chunk(int(at * 1e6), count) for at, count in chunks),
    )
    cell = measure(load_of(one, wall_ms=float(times[-1])))
    assert cell.output_tok_s * cell.wall_s == pytest.approx(counts[-1])
    assert sum(chunk_gaps(one)) + (one.ttft_s or 0) == pytest.approx(one.latency_s)
    if len(steps) > 1:
        assert cell.decode_tok_s == pytest.approx(1 / (cell.mean_time_per_token_s or 1))


def test_a_pause_counts_for_all_that_was_due_in_it() -> None:
    """0.3 s away once a second: what happens at a random moment waits 0.3**2 / 2 = 45 ms, not the 3 ms of one late timer."""
    late, due = lateness(0.01, 0.009)
    assert (late, due) == ([], 0.01)
    away, due = lateness(0.105, 0.4)
    on_time, due = lateness(due, due + 0.0005)
    assert len(away) == 30
    assert away[0] == pytest.approx(0.294)
    assert sum(away) / 100 == pytest.approx(0.045, rel=0.1)
    assert on_time == [0.0]
    assert due == pytest.approx(0.415)


def test_a_measurement_survives_json(record: Any) -> None:
    busy = ClientLoad(wall_s=1.0, cpu_s=0.1, lag_mean_s=0.001, lag_max_s=0.01, samples=100)
    load = Load(records=(record([(1, 1), (2, 2)]),), concurrency=1, start_ns=0, end_ns=10**9, client=busy)
    cell = measure(load, notes=("warm",))
    assert CellMeasurement.from_json(json.loads(json.dumps(cell.to_json()))) == cell


@pytest.mark.parametrize(
    ("changes", "kernel", "says"),
    [
        pytest.param({}, True, None, id="idle"),
        pytest.param({"cpu_s": 0.95}, True, "of a core", id="busy"),
        pytest.param({"lag_mean_s": 0.005}, True, "of a request", id="late"),
        pytest.param({"lag_mean_s": 0.0015}, True, None, id="late-but-the-kernel-stamps"),
        pytest.param({"lag_mean_s": 0.0015}, False, "gap between chunks", id="late-and-the-loop-stamps"),
    ],
)
def test_a_client_that_is_the_limit_says_so(
    record: Any, changes: dict[str, float], kernel: bool, says: str | None
) -> None:
    busy = {"wall_s": 1.0, "cpu_s": 0.1, "lag_mean_s": 0.0001, "lag_max_s": 0.01} | changes
    client = ClientLoad(samples=100, **busy)
    one = record([(10 * step, step) for step in range(1, 21)])
    cell = measure(Load(records=(one,), concurrency=1, start_ns=0, end_ns=10**9, client=client))
    reason = bound(cell, kernel_stamps=kernel)
    assert (reason is None) == (says is None)
    assert says is None or says in (reason or "")
