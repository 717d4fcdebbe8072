"""Gates: pairing, tolerances, the three outcomes, and the error rates they were designed for."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.stats
from hypothesis import assume, given
from hypothesis import strategies as st
from made import a_cell

from pytest_ddtree.results.gates import LOOKS, Design, decide, gate_cell, gate_pooled
from pytest_ddtree.results.metrics import ACCEPT, METRICS, SPEEDUP, TOK_S, TTFT_P90, round_values
from pytest_ddtree.results.paired import (
    Loss,
    agree,
    log_share,
    mean_loss,
    paired_loss,
    pooled_loss,
    trimmed_loss,
)
from pytest_ddtree.results.tolerance import (
    Start,
    StartSpread,
    Tolerance,
    across_sessions,
    start_spread,
    within_session,
)

RATES = st.dictionaries(st.integers(0, 9), st.floats(0.1, 1e4), min_size=1)
WITHIN = Tolerance(0.03, "same session")


@given(RATES, RATES, st.booleans())
def test_turning_the_sides_round_turns_the_loss_round(
    a: dict[int, float], b: dict[int, float], up: bool
) -> None:
    one, other = paired_loss(a, b, higher_is_better=up), paired_loss(b, a, higher_is_better=up)
    assert (one is None) == (other is None) == (not a.keys() & b.keys())
    if one is not None and other is not None:
        assert one.mean == pytest.approx(-other.mean, abs=1e-9)
        assert one.n == len(a.keys() & b.keys())


@given(RATES, st.floats(0.5, 2.0))
def test_what_prompts_do_to_both_sides_cancels(rates: dict[int, float], factor: float) -> None:
    assume(len(rates) > 1)
    loss = paired_loss(
        rates, {number: rate * factor for number, rate in rates.items()}, higher_is_better=True
    )
    assert loss is not None
    assert loss.share == pytest.approx(1 - factor, abs=1e-6)
    assert loss.error == pytest.approx(0.0, abs=1e-7)


def test_lower_is_worse_only_where_higher_is_better() -> None:
    before, now = {0: 100.0, 1: 100.0}, {0: 90.0, 1: 90.0}
    slower, quicker = (paired_loss(before, now, higher_is_better=up) for up in (True, False))
    assert slower is not None
    assert quicker is not None
    assert slower.share == pytest.approx(0.10)
    assert quicker.share < 0


def test_the_outcomes() -> None:
    steady = mean_loss([0.10, 0.101, 0.099, 0.10, 0.1005])
    assert decide(steady, 0.03, 1e-4) == "regressed"
    assert decide(mean_loss([0.0, 0.001, -0.001, 0.0]), 0.03, 1e-4) == "fine"
    assert decide(mean_loss([-0.2, -0.3, -0.25]), 0.03, 1e-4) == "fine"
    assert decide(mean_loss([0.10, -0.05, 0.07, 0.02]), 0.03, 1e-4) == "undecided"
    assert decide(mean_loss([0.9]), 0.03, 1e-4) == "undecided", "one round says nothing about noise"
    assert decide(mean_loss([0.05, 0.05]), 0.03, 1e-4) == "regressed", "no noise at all"


def test_a_sentence_names_metric_direction_interval_and_what_could_be_seen() -> None:
    before = round_values(TOK_S, a_cell([100.0, 130.0, 90.0, 110.0]))
    now = {number: value * (0.9 + 0.03 * number) for number, value in before.items()}
    gate = gate_cell("b8 ctx60-c4", TOK_S, before, now, WITHIN, Design(tests=4))
    assert gate is not None
    assert gate.outcome == "undecided"
    assert 0.03 < gate.visible < 1
    text = str(gate)
    for words in (
        "b8 ctx60-c4",
        "tok_s undecided",
        "95% interval",
        "n=4",
        "same session",
        "would have been found",
    ):
        assert words in text
    assert gate.as_json()["smallest_visible"] == gate.visible


def test_latency_that_grows_is_a_regression_with_a_plus() -> None:
    before = {number: 20.0 + number for number in range(5)}
    now = {number: value * (1.5 + number / 1e3) for number, value in before.items()}
    gate = gate_cell("x", TTFT_P90, before, now, Tolerance(0.1, "t"), Design())
    assert gate is not None
    assert gate.outcome == "regressed"
    assert "+50." in str(gate)


def test_a_small_loss_everywhere_is_seen_together_and_in_no_cell() -> None:
    generator = np.random.default_rng(3)
    cells = []
    for _ in range(24):
        before = dict(enumerate(np.exp(generator.normal(5, 0.3, 6)).tolist()))
        cells.append(
            (before, {n: value * 0.97 * math.exp(generator.normal(0, 0.01)) for n, value in before.items()})
        )
    design = Design(tests=20)
    alone = [gate_cell(str(i), TOK_S, *cell, WITHIN, design) for i, cell in enumerate(cells)]
    assert all(gate is not None and gate.outcome != "regressed" for gate in alone)
    together = gate_pooled(TOK_S, cells, Tolerance(0.01, "same session"), design)
    assert together is not None
    assert together.outcome == "regressed"
    assert together.loss.share == pytest.approx(0.03, abs=0.005)


def test_cells_of_one_round_say_nothing_together() -> None:
    assert pooled_loss([mean_loss([0.5])]) is None
    assert gate_pooled(TOK_S, [({0: 1.0}, {0: 0.1})], WITHIN, Design()) is None


@given(st.lists(st.lists(st.floats(-0.5, 0.5), min_size=2, max_size=6), min_size=1, max_size=5))
def test_the_pooled_mean_lies_among_the_cells(cells: list[list[float]]) -> None:
    losses = [mean_loss(cell) for cell in cells]
    together = pooled_loss(losses)
    assert together is not None
    means = [loss.mean for loss in losses]
    assert min(means) - 1e-9 <= together.mean <= max(means) + 1e-9
    assert together.error <= max(loss.error for loss in losses) + 1e-12


def test_the_interval_is_wrong_as_often_as_it_says() -> None:
    generator = np.random.default_rng(1)
    losses = [mean_loss(list(generator.normal(0.02, 0.03, 5))) for _ in range(4000)]
    beyond = sum(loss.at_least(0.01) > 0.02 for loss in losses)
    assert 20 <= beyond <= 65


@given(st.lists(st.integers(-1000, 1000), min_size=10, max_size=40, unique=True))
def test_the_trimmed_mean_and_its_error_are_those_of_the_trimmed_t_test(thousandths: list[int]) -> None:
    losses = [number / 1000 for number in thousandths]
    found = trimmed_loss(losses)
    mirrored = [1 - loss for loss in losses]
    known = scipy.stats.ttest_ind(losses, mirrored, equal_var=False, trim=0.2)
    assert found.mean == pytest.approx(scipy.stats.trim_mean(losses, 0.2))
    assert (2 * found.mean - 1) / (math.sqrt(2) * found.error) == pytest.approx(known.statistic, rel=1e-6)
    assert found.freedom == len(losses) - 2 * (len(losses) // 5) - 1
    assert found.n == len(losses)


@given(st.lists(st.floats(-0.5, 0.5), min_size=1, max_size=9))
def test_fewer_than_ten_are_not_trimmed(losses: list[float]) -> None:
    assert trimmed_loss(losses) == mean_loss(losses)


@pytest.mark.parametrize("n", [10, 16, 48])
@pytest.mark.parametrize("bursts", [0.0, 0.05, 0.2])
def test_bursts_on_the_machine_raise_no_alarm_and_hide_no_loss(n: int, bursts: float) -> None:
    generator = np.random.default_rng(6)
    hit = generator.random((4000, n)) < bursts
    noise = generator.normal(0, 0.02, hit.shape) + hit * generator.normal(0, 0.5, hit.shape)
    beyond = sum(trimmed_loss(one.tolist()).at_least(0.01) > 0 for one in noise)
    assert beyond <= 65
    if n == 48 and bursts == 0.05:
        seen = [
            sum(loss([*(one + 0.03)]).at_least(1e-4) > 0.01 for one in noise[:300]) / 300
            for loss in (trimmed_loss, mean_loss)
        ]
        assert seen[0] > 0.8 > 0.2 > seen[1]


@pytest.mark.parametrize("n", [2, 4, 8, 30])
def test_what_could_have_been_seen_is_seen_as_often_as_it_says(n: int) -> None:
    """Also of a few rounds, whose own noise is hardly known: a sum of two quantiles would be seen in 7 of 10 sessions of 4 rounds."""
    generator = np.random.default_rng(2)
    noise, alpha = 0.002, 1e-3
    typical = Loss(0.0, noise / math.sqrt(n), n - 1, n)
    visible = typical.visible(0.03, alpha)
    found = [
        decide(mean_loss(list(generator.normal(log_share(visible), noise, n))), 0.03, alpha) == "regressed"
        for _ in range(2000)
    ]
    assert 0.93 <= sum(found) / len(found) <= 0.97


def test_the_design_spends_no_more_than_the_session_has() -> None:
    design = Design(alpha=0.001, tests=20)
    assert design.of_one * 20 * len(LOOKS) + design.of_pooled * len(LOOKS) == pytest.approx(0.001)
    assert [design.next_look(rounds) for rounds in (0, 3, 4, 16, 29, 30)] == [4, 4, 8, 30, 30, None]


def test_metrics_of_a_cell_and_of_its_speedup() -> None:
    cell, base = a_cell([200.0, 300.0]), a_cell([100.0, 100.0, 100.0], config="baseline", verify_steps=None)
    assert round_values(SPEEDUP, cell, base) == pytest.approx({0: 2.0, 1: 3.0})
    assert round_values(SPEEDUP, base, base) == {}
    assert round_values(SPEEDUP, cell) == {}
    assert round_values(ACCEPT, cell) == {0: 4.0, 1: 4.0}
    assert round_values(ACCEPT, base) == {}
    assert round_values(TTFT_P90, cell)[0] == pytest.approx(37.0)
    assert set(METRICS) == {"tok_s", "ttft_p90_ms", "ms_per_token_p90", "accept_length", "speedup"}


def test_across_sessions_few_starts_allow_ten_percent_and_many_what_they_show() -> None:
    few = across_sessions(0.03, start_spread([Start("a", {0: 100.0})] * 4))
    assert few.share == 0.10
    assert "fewer than 5" in few.why
    quiet = across_sessions(0.01, start_spread(Start("a", {0: 100.0 + i / 10}) for i in range(6)))
    assert quiet.share == 0.03
    noisy = across_sessions(
        0.03, start_spread(Start("a", {0: rate}) for rate in (100.0, 104.0, 96.0, 102.0, 98.0))
    )
    assert 0.10 < noisy.share < 0.14
    assert "5 starts" in noisy.why


def test_a_change_between_builds_is_no_noise_between_starts() -> None:
    figures = [("a", 100.0), ("a", 100.1), ("a", 99.9), ("b", 50.0), ("b", 50.05), ("b", 49.95), ("c", 10.0)]
    spread = start_spread(Start(build, {0: rate}) for build, rate in figures)
    assert spread.starts == 6
    assert spread.deviation < 0.002
    assert math.isnan(start_spread([Start("a", {0: 1.0}), Start("b", {0: 2.0})]).deviation)


def test_other_rounds_have_other_prompts_which_is_no_noise_of_starts() -> None:
    easy = {0: 100.0, 1: 102.0, 2: 98.0, 3: 101.0}
    hard = easy | dict.fromkeys(range(4, 16), 50.0)
    starts = [Start("a", easy), Start("a", hard), Start("a", hard), Start("a", easy | {4: 50.0})]
    assert start_spread(starts) == StartSpread(0.0, 4)
    # A start that broke off after two rounds says little; alone it is all there is.
    assert start_spread([*starts, Start("a", {0: 10.0, 1: 10.0})]).starts == 4
    assert start_spread([Start("a", {0: 10.0}), Start("a", {0: 10.0, 1: 99.0})]).starts == 2


def test_a_start_that_is_stored_twice_is_one() -> None:
    figures = [{0: 100.0}, {0: 101.0}, {0: 99.0}]
    once = [Start("a", values, f"run{number}") for number, values in enumerate(figures)]
    assert start_spread([*once, *once]) == start_spread(once)
    assert start_spread([*once, *once]).starts == 3


def test_starts_that_differ_by_more_than_a_quarter_tolerate_less_than_everything() -> None:
    wild = start_spread(Start("a", {0: 100.0 * math.exp(step)}) for step in (-1, 0, 1, -1, 1, 0))
    tolerance = across_sessions(0.03, wild)
    assert 0.9 < tolerance.share < 1
    slower = paired_loss({0: 100.0, 1: 101.0}, {0: 99.0, 1: 100.0}, higher_is_better=True)
    assert slower is not None
    assert decide(slower, tolerance.share, 0.001) in ("fine", "undecided")


def test_more_starts_on_each_side_are_less_noise() -> None:
    spread = start_spread(Start("a", {0: 100.0 * math.exp(step / 50)}) for step in (-1, 0, 1, -1, 1, 0))
    one, two = (-math.log1p(-within_session(0.01, (n, n), spread).share) for n in (1, 2))
    assert one == pytest.approx(two * math.sqrt(2))
    assert within_session(0.03).share == 0.03


@pytest.mark.parametrize("stays", [2, 8])
def test_stays_of_two_rounds_on_a_quiet_machine_agree(stays: int) -> None:
    generator = np.random.default_rng(5)

    def some(apart: float) -> bool:
        shifts = [apart * (number % 2) for number in range(stays)]
        return agree([mean_loss(generator.normal(shift, 0.03, 2).tolist()) for shift in shifts])

    assert sum(not some(0.0) for _ in range(300)) <= 10
    if stays > 2:
        assert sum(not some(0.3) for _ in range(50)) >= 48


def test_a_cell_of_one_round_is_not_among_those_that_were_judged_together() -> None:
    quick, slow = dict.fromkeys(range(4), 100.0), {number: 90.0 + 0.1 * number for number in range(4)}
    gate = gate_pooled(TOK_S, [(quick, slow), (quick, slow), (quick, {0: 50.0})], WITHIN, Design())
    assert gate is not None
    assert gate.what == "all 2 cells together"
    assert gate.loss.n == 8
