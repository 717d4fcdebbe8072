"""Losses said on the scale of the metric that they are said of."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_ddtree.results.gates import Design, gate_cell
from pytest_ddtree.results.metrics import TOK_S, TTFT_P90
from pytest_ddtree.results.scale import accepted_text, change_of, found_text, least_text, signed
from pytest_ddtree.results.tolerance import Tolerance


@given(st.floats(-0.01, 0.01))
def test_what_rounds_to_zero_has_no_sign(change: float) -> None:
    text = signed(change)
    assert (text == "0.0%") == (abs(float(text.rstrip("%"))) == 0)
    assert text[0] in "+-0"
    assert float(text.rstrip("%")) == pytest.approx(change * 100, abs=0.0501)


@given(st.floats(1.0, 1e4), st.floats(0.01, 100.0))
def test_a_loss_is_the_change_that_the_metric_shows(before: float, factor: float) -> None:
    """1 - now/before of a rate, 1 - before/now of a time: both become now/before - 1."""
    now = before * factor
    shown = now / before - 1
    assert change_of(1 - now / before, higher_is_better=True) == pytest.approx(shown, rel=1e-6, abs=1e-9)
    assert change_of(1 - before / now, higher_is_better=False) == pytest.approx(shown, rel=1e-6, abs=1e-9)


def test_of_a_time_a_loss_is_a_rise() -> None:
    assert found_text(0.557, higher_is_better=False) == "a rise of 125.7% or more would have been found"
    assert found_text(0.557, higher_is_better=True) == "a loss of 55.7% or more would have been found"
    assert accepted_text(0.1, "few", higher_is_better=False) == "+11.1% (a loss of 10.0%: few)"
    assert accepted_text(0.1, "few", higher_is_better=True) == "10.0% (few)"
    assert least_text(0.5, higher_is_better=False) == "a rise of 100.0%"


@pytest.mark.parametrize("loss", [0.9999999, 1.0])
def test_where_next_to_nothing_would_be_found_no_figure_is_made_up(loss: float) -> None:
    assert math.isinf(change_of(1.0, higher_is_better=False))
    assert found_text(loss, higher_is_better=False) == "no rise to less than ten times would have been found"
    assert found_text(loss, higher_is_better=True) == "no loss below 90% would have been found"


def test_a_sentence_has_one_scale() -> None:
    """A rise as large as the one that would have been found is the change that the sentence would then show."""
    before = {number: 20.0 + number for number in range(6)}
    factors = (1.0, 1.3, 0.9, 1.2, 1.1, 0.95)
    now = {number: value * factors[number] for number, value in before.items()}
    gate = gate_cell("x", TTFT_P90, before, now, Tolerance(0.1, "t"), Design())
    assert gate is not None
    assert gate.outcome == "undecided"
    seen = float(str(gate).partition("a rise of ")[2].partition("%")[0]) / 100
    assert 1 - 1 / (1 + seen) == pytest.approx(gate.visible, abs=1e-3)
    assert "tolerance +11.1% (a loss of 10.0%: t)" in str(gate)
    assert gate.as_json()["tolerance"] == 0.1
    assert gate.as_json()["smallest_visible"] == gate.visible


def test_a_change_that_rounds_to_zero_has_no_minus_in_a_gate() -> None:
    before = dict.fromkeys(range(4), 100.0)
    now = {number: value * (1 - 1e-5) for number, value in before.items()}
    gate = gate_cell("x", TOK_S, before, now, Tolerance(0.03, "t"), Design())
    assert gate is not None
    assert ", 0.0%, 95% interval 0.0% to 0.0%" in str(gate)
