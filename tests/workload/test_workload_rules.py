"""Rules of a cell: lengths, endings, rounds, validity."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from pytest_ddtree.client.prometheus import parse_metrics
from pytest_ddtree.workload.cell import UnnaturalAnswers, natural_endings
from pytest_ddtree.workload.endings import (
    COMPARED,
    UNCHOSEN,
    EndingLimits,
    distinct_ratio,
    endings,
    loops,
    together,
    tokens_after_end,
)
from pytest_ddtree.workload.gpu import read_gpus, throttle_reasons, visible_indices
from pytest_ddtree.workload.rounds import SamplingRule, decide, rate_interval
from pytest_ddtree.workload.shape import infeasible, longest_output, output_lengths, request_count
from pytest_ddtree.workload.steps import wrong_steps
from pytest_ddtree.workload.validity import GpuState, invalid_reasons
from pytest_ddtree.workload.watching import request_limit, running_limit

EOS = {2}


@given(st.integers(1, 200), st.integers(1, 4096), st.integers(0, 100), st.floats(0, 0.5))
def test_lengths_are_spread_around_the_one_asked_for(
    count: int, output: int, seed: int, jitter: float
) -> None:
    lengths = output_lengths(count, output, seed=seed, jitter=jitter)
    assert len(lengths) == count
    assert lengths == output_lengths(count, output, seed=seed, jitter=jitter)
    assert sorted(lengths) == sorted(output_lengths(count, output, seed=seed + 1, jitter=jitter))
    assert all(
        max(1, math.floor(output * (1 - jitter))) <= length <= longest_output(output, jitter)
        for length in lengths
    )
    # Rounding moves each length by at most a half; lengths under one are lifted to it.
    assert abs(sum(lengths) - count * output) <= count / 2 + count * (output * (1 - jitter) < 1)


def test_lengths_without_jitter_are_equal() -> None:
    assert set(output_lengths(16, 64, seed=0, jitter=0.0)) == {64}


def test_lengths_that_are_jittered_differ() -> None:
    assert len(set(output_lengths(16, 64, seed=0))) == 16


def test_a_round_turns_every_stream_over_four_times() -> None:
    assert request_count(32) == 128


@pytest.mark.parametrize(
    ("concurrency", "pool", "limit", "says"),
    [
        (64, 100_000, None, "64 x \\(1024 \\+ 256\\) = 81920"),
        (64, 81_920, None, None),
        (64, None, None, None),
        (1, None, 1279, "limit of 1279"),
        (1, None, 1280, None),
    ],
)
def test_what_does_not_fit_the_server_is_infeasible(
    concurrency: int, pool: int | None, limit: int | None, says: str | None
) -> None:
    pool = 81_919 if says and limit is None else pool
    reason = infeasible(
        concurrency=concurrency, context=1024, output=256, max_total_tokens=pool, max_request_tokens=limit
    )
    if says is None:
        assert reason is None
    else:
        import re

        assert reason is not None
        assert re.search(says, reason)


@pytest.mark.parametrize(
    ("ids", "after"), [([], 0), ([5, 6], 0), ([5, 2], 0), ([2, 5, 6], 2), ([5, 2, 2, 7], 2)]
)
def test_tokens_after_the_natural_end_are_counted(ids: list[int], after: int) -> None:
    assert tokens_after_end(ids, EOS) == after


def test_distinct_4_grams() -> None:
    assert distinct_ratio([1, 2, 3]) == 1.0
    assert distinct_ratio(range(100)) == 1.0
    assert distinct_ratio([7] * 103) == pytest.approx(1 / 100)


def test_a_loop_at_the_end_is_found_behind_a_long_natural_beginning() -> None:
    natural = list(range(1000))
    assert not loops(natural)
    assert loops(natural + [1, 2, 3] * 22)
    assert not loops([7] * 31)


def test_answers_behind_their_end_make_the_cell_invalid(record: Any) -> None:
    clean = record([(1, 100)], ids=range(10, 110))
    after = record([(1, 100)], ids=[*range(10, 99), 2, *range(200, 210)])
    assert endings([clean], EOS).invalid() is None
    assert endings([clean, after], EOS).after_end_share == pytest.approx(0.05)
    assert endings([clean, after], EOS).invalid() is None
    assert "natural end" in (endings([after], EOS).invalid() or "")
    assert endings([after], EOS).invalid(EndingLimits(after_end=0.1)) is None


@pytest.mark.parametrize(("answers", "borne"), [(1, 0), (15, 0), (16, 1), (32, 1), (64, 3), (256, 12)])
def test_a_few_early_ends_spoil_no_cell_but_let_the_baseline_choose_prompts(
    record: Any, answers: int, borne: int
) -> None:
    """As on a real server: 2.3 to 3.8 % of the tokens of 24 to 32 answers, all in one, in a round of which the baseline had none."""
    clean = record([(1, 100)], ids=range(10, 110))
    after = record([(1, 100)], ids=[2, *range(10, 109)])
    found = endings([clean] * (answers - borne) + [after] * borne, EOS)
    assert found.invalid() is None
    assert borne == 0 or "at most 2.0%" in str(found.invalid(UNCHOSEN)) or found.after_end_share <= 0.02
    reason = endings([clean] * (answers - borne - 1) + [after] * (borne + 1), EOS).invalid()
    assert "natural end" in str(reason)


def test_a_round_with_early_ends_is_judged_with_those_before_it(record: Any) -> None:
    clean = record([(1, 100)], ids=range(10, 110))
    after = record([(1, 100)], ids=[2, *range(10, 109)])
    before = endings([clean] * 32, EOS)
    with pytest.raises(UnnaturalAnswers, match=r"6\.2% of the output tokens"):
        natural_endings([clean] * 30 + [after] * 2, EOS)
    found = natural_endings([clean] * 30 + [after] * 2, EOS, earlier=[before])
    assert (found.answers, found.tokens_after_end, found.most_after_end) == (32, 198, 99)
    whole = together([before, found])
    assert (whole.answers, whole.tokens, whole.after_end_share) == (64, 6400, pytest.approx(198 / 6400))
    with pytest.raises(UnnaturalAnswers, match=r"at most 2\.0%"):
        natural_endings([clean] * 30 + [after] * 2, EOS, limits=UNCHOSEN, earlier=[before] * 3)


def test_answers_that_loop_make_the_cell_invalid(record: Any) -> None:
    clean, looping = record([(1, 100)], ids=range(10, 110)), record([(1, 100)], ids=[5, 6] * 50)
    found = endings([clean, looping], EOS)
    assert (found.looping, found.distinct_least < 0.1) == (1, True)
    assert "loop" in (found.invalid() or "")
    assert found.invalid(EndingLimits(looping=0.5)) is None


@pytest.mark.parametrize(("answers", "borne"), [(1, 0), (15, 0), (16, 1), (32, 1), (64, 3), (256, 12)])
def test_a_few_loops_spoil_no_cell(record: Any, answers: int, borne: int) -> None:
    """As healthy trees of a real server showed, 1 or 2 of 32 to 64 answers: one left the baseline's path at a near-tie."""
    clean, looping = record([(1, 100)], ids=range(10, 110)), record([(1, 100)], ids=[5, 6] * 50)
    assert endings([clean] * (answers - borne) + [looping] * borne, EOS).invalid() is None
    reason = endings([clean] * (answers - borne - 1) + [looping] * (borne + 1), EOS).invalid()
    assert f"{borne + 1} of {answers} answers" in str(reason)
    assert f"at most {borne} may" in str(reason)


def test_a_loop_in_the_first_round_is_no_worse_than_one_in_the_last(record: Any) -> None:
    """As on a real server: 1 of the first 10 answers of a stay of 30 ended a comparison after eleven minutes."""
    clean, looping = record([(1, 100)], ids=range(10, 110)), record([(1, 100)], ids=[5, 6] * 50)
    first, rest = [looping] + [clean] * 4, [clean] * 5
    with pytest.raises(UnnaturalAnswers, match="1 of 5 answers end in a loop"):
        natural_endings(first, EOS)
    with pytest.raises(
        UnnaturalAnswers, match=r"1 of 5 answers, with 10 to come end in a loop .* at most 0 may"
    ):
        natural_endings(first, EOS, coming=10)
    earlier = [natural_endings(first, EOS, coming=25)]
    for coming in (20, 15, 10, 5, 0):
        earlier.append(natural_endings(rest, EOS, earlier=earlier, coming=coming))
    assert together(earlier).looping == 1
    with pytest.raises(UnnaturalAnswers, match="2 of 10 answers, with 20 to come"):
        natural_endings(first, EOS, earlier=earlier[:1], coming=20)


def test_an_early_end_in_the_first_round_is_no_worse_than_one_in_the_last(record: Any) -> None:
    clean = record([(1, 100)], ids=range(10, 110))
    after = record([(1, 100)], ids=[2, *range(10, 109)])
    natural_endings([after] + [clean] * 4, EOS, coming=11)
    with pytest.raises(UnnaturalAnswers, match="19\\.8% of the output tokens"):
        natural_endings([after] + [clean] * 4, EOS, coming=10)


def test_builds_that_answer_the_same_prompts_bear_more(record: Any) -> None:
    clean, looping = record([(1, 100)], ids=range(10, 110)), record([(1, 100)], ids=[5, 6] * 50)
    natural_endings([looping] * 3 + [clean] * 9, EOS, limits=COMPARED)
    with pytest.raises(UnnaturalAnswers, match="4 of 12"):
        natural_endings([looping] * 4 + [clean] * 8, EOS, limits=COMPARED)


def test_failed_answers_say_nothing_about_endings(record: Any) -> None:
    assert endings([record([(1, 100)], ids=[5] * 100, outcome="cut")], EOS).answers == 0


def test_an_interval_is_students() -> None:
    rates = [100.0, 110.0, 90.0, 105.0]
    interval = rate_interval(rates)
    assert interval is not None
    logs = np.log(rates)
    low, high = stats.t.interval(0.95, 3, loc=logs.mean(), scale=stats.sem(logs))
    assert (interval.low, interval.high) == (pytest.approx(math.exp(low)), pytest.approx(math.exp(high)))
    assert interval.centre == pytest.approx(stats.gmean(rates))


@pytest.mark.parametrize(
    ("rates", "elapsed", "verdict"),
    [
        pytest.param([], 0.0, "more", id="nothing-yet"),
        pytest.param([100.0, 100.1, 100.05], 0.0, "more", id="fewer-than-the-least"),
        pytest.param([100.0, 100.1, 100.05, 99.95], 0.0, "precise", id="precise"),
        pytest.param([100.0, 120.0, 80.0, 110.0], 0.0, "more", id="too-wide"),
        pytest.param([100.0, 120.0] * 4, 0.0, "max_rounds", id="cap-of-rounds"),
        pytest.param([100.0, 120.0], 55.0, "max_seconds", id="cap-of-time"),
        pytest.param([], 99.0, "more", id="one-round-whatever-it-takes"),
    ],
)
def test_rounds_go_on_until_precise_or_capped(rates: list[float], elapsed: float, verdict: str) -> None:
    rule = SamplingRule(precision=0.02, max_rounds=8, max_seconds=60.0)
    decision = decide(rates, rule, elapsed_s=elapsed, next_s=10.0)
    assert decision.verdict == verdict
    assert decision.stop == (verdict != "more")
    assert str(decision)


def test_a_round_without_a_rate_is_refused() -> None:
    with pytest.raises(ValueError, match="failure"):
        rate_interval([100.0, 0.0])


@pytest.mark.parametrize(
    "options", [{"precision": 0.0}, {"min_rounds": 1}, {"min_rounds": 9, "max_rounds": 8}]
)
def test_a_rule_that_makes_no_sense_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"precision|rounds"):
        SamplingRule(**options)


def test_a_fixed_number_of_rounds_may_be_one() -> None:
    rule = SamplingRule(min_rounds=1, max_rounds=1)
    assert not decide([], rule).stop
    assert decide([100.0], rule).verdict == "max_rounds"


def covering(sd: float, rule: SamplingRule, sessions: int, rng: np.random.Generator) -> float:
    """The share of simulated cells whose final interval holds the true rate."""
    hits = 0
    for _ in range(sessions):
        rates: list[float] = []
        while not (decision := decide(rates, rule)).stop:
            rates.append(100.0 * math.exp(rng.normal(0.0, sd)))
        assert decision.interval is not None
        hits += decision.interval.low <= 100.0 <= decision.interval.high
    return hits / sessions


def test_stopping_early_costs_the_interval_a_known_part_of_its_coverage() -> None:
    rng = np.random.default_rng(7)
    # A cell that stops when it looks precise is over-confident where noise and precision are of one size.
    assert covering(0.004, SamplingRule(), 400, rng) > 0.92
    assert covering(0.02, SamplingRule(), 400, rng) > 0.85


LOG = """
[12:00:00] Prefill batch, #new-seq: 1, #queue-req: 5
[12:00:01] Decode batch, #running-req: 8, cuda graph: True, #queue-req: 0
"""


def test_a_healthy_window_has_no_reason(record: Any) -> None:
    metrics = parse_metrics("sglang:num_retracted_reqs{} 0.0\n")
    healthy = record([(1, 1)], num_retractions=0)
    gpu = GpuState(index=2, name="H200", uncorrected_ecc=3)
    assert (
        invalid_reasons(
            records=[healthy],
            before=metrics,
            after=metrics,
            log=LOG,
            on_gpu=True,
            gpus_before=[gpu],
            gpus_after=[gpu],
        )
        == ()
    )


def test_every_sign_of_an_unhealthy_window_is_a_reason(record: Any) -> None:
    before = parse_metrics('sglang:num_retracted_reqs{rank="0"} 0.0\n')
    after = parse_metrics('sglang:num_retracted_reqs{rank="0"} 2.0\n')
    line = "[12:00:02] Decode batch, #running-req: 8, cuda graph: False, #queue-req: 3\n"
    gpu = GpuState(index=2, name="H200", uncorrected_ecc=3)
    later = GpuState(index=2, name="H200", throttle=("hardware slowdown",), uncorrected_ecc=4)
    reasons = {
        "retractions": invalid_reasons(records=[record([(1, 1)], num_retractions=1)]),
        "2 retractions": invalid_reasons(before=before, after=after),
        "up to 3 requests waited": invalid_reasons(log=LOG + line + line),
        "1 retractions": invalid_reasons(log="KV cache pool is full. Retract requests. #retracted_reqs: 1\n"),
        "cuda graph: False": invalid_reasons(log=line.replace("#queue-req: 3", "#queue-req: 0"), on_gpu=True),
        "Xid": invalid_reasons(log="NVRM: Xid (PCI:0000:01): 79, GPU has fallen off the bus."),
        "Xid 79 on GPU 0": invalid_reasons(xids=["Xid 79 on GPU 0"]),
        "GPU 2 (H200) was throttled: hardware slowdown": invalid_reasons(
            gpus_before=[gpu], gpus_after=[later]
        )[:1],
        "GPU 2 (H200) had 1 uncorrected ECC": invalid_reasons(gpus_before=[gpu], gpus_after=[later])[1:],
    }
    for says, found in reasons.items():
        assert len(found) == 1, says
        assert says in found[0]


def test_a_request_that_arrives_at_the_moment_of_a_log_line_is_no_queue() -> None:
    lines = [f"Decode batch, #running-req: 8, cuda graph: True, #queue-req: {n}\n" for n in (0, 1, 0, 2, 0)]
    assert invalid_reasons(log="".join(lines), on_gpu=True) == ()


def test_heat_that_slowed_a_gpu_counts_from_a_hundredth_of_the_time() -> None:
    before = [GpuState(index=2, name="H200", slowed_ns=5, at_ns=0)]
    assert (
        invalid_reasons(
            gpus_before=before, gpus_after=[GpuState(index=2, name="H200", slowed_ns=5 + 9, at_ns=1000)]
        )
        == ()
    )
    (reason,) = invalid_reasons(
        gpus_before=before, gpus_after=[GpuState(index=2, name="H200", slowed_ns=5 + 500, at_ns=1000)]
    )
    assert "throttled for heat in 50% of the time" in reason


def test_only_gpus_that_the_server_may_use_are_looked_at() -> None:
    assert visible_indices("0, 3") == frozenset({0, 3})
    assert visible_indices("") is None
    assert visible_indices("GPU-abc") is None


@pytest.mark.parametrize(
    ("info", "limit"),
    [
        ({"max_running_requests": 48}, 48),
        ({"max_running_requests": None}, None),
        (
            {
                "max_running_requests": 64,
                "dp_size": 2,
                "internal_states": [{"effective_max_running_requests_per_dp": 24}],
            },
            48,
        ),
    ],
)
def test_what_a_server_runs_at_once(info: dict[str, Any], limit: int | None) -> None:
    assert running_limit(info) == limit


@pytest.mark.parametrize(
    ("info", "limit"),
    [
        ({}, None),
        ({"context_length": None, "max_req_input_len": 16378}, 16378),
        ({"context_length": 400, "max_req_input_len": 16378}, 400),
    ],
)
def test_how_long_one_request_may_be(info: dict[str, Any], limit: int | None) -> None:
    assert request_limit(info) == limit


def test_more_streams_than_the_server_runs_at_once_are_infeasible() -> None:
    reason = infeasible(concurrency=64, context=1, output=1, max_total_tokens=None, max_running=48)
    assert reason is not None
    assert "at most 48 requests at once" in reason
    assert infeasible(concurrency=48, context=1, output=1, max_total_tokens=None, max_running=48) is None


def test_an_engine_without_graphs_is_not_blamed_for_them() -> None:
    assert invalid_reasons(log="Decode batch, cuda graph: False, #queue-req: 0", on_gpu=False) == ()


def test_only_throttling_that_slows_counts() -> None:
    assert throttle_reasons(0x1 | 0x2 | 0x4) == ()
    assert throttle_reasons(0x8 | 0x40) == ("hardware slowdown", "hardware thermal slowdown")


def test_gpus_can_be_asked_for_on_any_machine() -> None:
    assert all(isinstance(gpu, GpuState) for gpu in read_gpus())


@pytest.mark.parametrize(
    ("steps", "says"),
    [
        (None, None),
        (0, None),
        (2, None),
        (3, None),
        (4, "3 tokens"),
        (15, "accept length of 0.20 is impossible"),
        (-3, "spec_verify_ct is -3"),
        (1.5, "spec_verify_ct is 1.5"),
        (True, "spec_verify_ct is True"),
        ("3", "spec_verify_ct is '3'"),
    ],
)
def test_verify_steps_that_cannot_be_true_are_told(record: Any, steps: object, says: str | None) -> None:
    found = wrong_steps([record([(1, 1), (2, 3)], spec_verify_ct=steps)])
    assert found is None if says is None else found is not None and says in found


def test_steps_are_compared_over_the_round_and_of_answers_only(record: Any) -> None:
    """A step that one request took behind its end is none of too many."""
    answers = [record([(1, 1)], spec_verify_ct=2), record([(1, 4), (2, 8)], spec_verify_ct=2)]
    assert wrong_steps(answers) is None
    assert wrong_steps([*answers, record([], outcome="cut", spec_verify_ct=90)]) is None
