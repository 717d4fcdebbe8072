"""Drawing tokens: pure functions of logits, parameters, seed and position."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from pytest_ddtree.reference.sampling import (
    SamplingParams,
    choose,
    distribution,
    draw,
    edited,
    log_softmax,
    uniform,
)


def test_uniform_numbers_are_uniform_and_uncorrelated():
    numbers = np.array([[uniform(seed, position) for position in range(60)] for seed in range(60)])
    assert stats.kstest(numbers.reshape(-1), "uniform").pvalue > 1e-3
    for shifted in (numbers[:, 1:] - numbers[:, :-1], numbers[1:] - numbers[:-1]):
        # Differences of independent uniforms have variance 1/6.
        assert abs(shifted.var() - 1 / 6) < 0.02


@given(st.integers(0, 2**62), st.integers(0, 10**6))
def test_uniform_is_a_function_of_seed_and_position(seed, position):
    assert uniform(seed, position) == uniform(seed, position)
    assert 0.0 <= uniform(seed, position) < 1.0
    assert uniform(seed, position) != uniform(seed, position + 1)


def test_draws_follow_the_exact_distribution():
    logits = np.array([2.0, 1.0, 0.5, -1.0, -3.0], dtype=np.float32)
    params = SamplingParams(temperature=0.7)
    expected = np.exp(logits.astype(float) / 0.7)
    expected /= expected.sum()
    counts = np.bincount([choose(logits, params, seed, 17) for seed in range(20_000)], minlength=5)
    assert stats.chisquare(counts, expected * counts.sum()).pvalue > 1e-3


@given(
    st.integers(0, 2**31), st.floats(0.2, 2.0), st.integers(1, 20), st.floats(0.05, 1.0), st.floats(0.0, 0.5)
)
def test_filters_keep_a_set_of_best_tokens(seed, temperature, top_k, top_p, min_p):
    logits = np.random.default_rng(seed).standard_normal(20).astype(np.float32)
    params = SamplingParams(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    found = distribution(logits, params)
    plain = distribution(logits, SamplingParams(temperature=temperature))
    kept = np.flatnonzero(found)
    assert found.sum() == pytest.approx(1.0)
    assert 1 <= len(kept) <= top_k
    assert plain[kept].min() >= np.delete(plain, kept).max(initial=0.0)
    assert (plain[kept] >= min_p * plain.max() - 1e-12).all()
    before = plain[kept].sum() - plain[kept].min()
    assert before <= top_p + 1e-9
    np.testing.assert_allclose(found[kept], plain[kept] / plain[kept].sum(), rtol=1e-9)


def test_draw_takes_the_bin_of_the_number():
    probabilities = np.array([0.0, 0.25, 0.0, 0.75])
    assert [draw(probabilities, number) for number in (0.0, 0.2499, 0.25, 0.9999999)] == [1, 1, 3, 3]


def test_greedy_takes_the_first_of_equal_logits():
    logits = np.array([0.0, 3.0, 3.0], dtype=np.float32)
    assert choose(logits, SamplingParams(temperature=0.0), 1, 1) == 1
    assert choose(logits, SamplingParams(temperature=1.0, top_k=1), 1, 1) == 1


def test_penalties_and_bias_are_exact():
    logits = np.array([1.0, -1.0, 2.0, 0.0], dtype=np.float32)
    params = SamplingParams(
        frequency_penalty=0.5, presence_penalty=0.25, repetition_penalty=2.0, logit_bias={3: 4.0}
    )
    result = edited(logits, params, {0: 2}, {0, 1})
    assert result.tolist() == [0.5 - 1.25, -2.0, 2.0, 4.0]
    assert logits[3] == 0.0, "the logits themselves stay as they are"


def test_log_softmax_is_normalised():
    rows = log_softmax(np.array([[1000.0, 999.0], [-5.0, 5.0]], dtype=np.float32))
    np.testing.assert_allclose(np.exp(rows.astype(float)).sum(axis=-1), 1.0, atol=1e-6)


@pytest.mark.parametrize("temperature", [1e-320, 1e-50, 9e-7])
def test_a_temperature_that_logits_cannot_be_divided_by_is_greedy(temperature):
    logits = np.array([0.5, 8.0, -3.0, 0.0], dtype=np.float32)
    assert [choose(logits, SamplingParams(temperature=temperature), seed, 5) for seed in range(20)] == [
        1
    ] * 20
