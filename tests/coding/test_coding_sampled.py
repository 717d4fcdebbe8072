"""Several samples a problem: counts, Fisher's test of one problem, the sign-flip test of all."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import scipy.stats
from coding_answers import solved
from hypothesis import given
from hypothesis import strategies as st

from pytest_ddtree.coding.pairs import Solved
from pytest_ddtree.coding.sampled import SampledComparison, SampledPair, compare_samples
from pytest_ddtree.coding.stats import Gate
from pytest_ddtree.coding.summary import summarise_samples

GATE = Gate(alpha=0.05, margin=0.02)


@cache
def one(status: str, text: str) -> Solved:
    return solved(status, text=text)


def sampled(base: int, other: int, k: int, alpha: float = 0.001) -> SampledPair:
    def side(passing: int) -> tuple:
        return tuple(one("pass" if i < passing else "wrong", f"{i}") for i in range(k))

    return SampledPair(baseline=side(base), other=side(other), alpha=alpha)


@given(st.integers(1, 12).flatmap(lambda k: st.tuples(st.integers(0, k), st.integers(0, k), st.just(k))))
def test_p_of_one_problem_is_fishers(counts: tuple[int, int, int]) -> None:
    base, other, k = counts
    expected = scipy.stats.fisher_exact([[base, k - base], [other, k - other]], alternative="greater").pvalue
    assert sampled(base, other, k).p == pytest.approx(expected)


@pytest.mark.parametrize(
    ("base", "other", "k", "judgement"),
    [(8, 0, 8, "lost"), (8, 4, 8, "fine"), (4, 0, 4, "fine"), (0, 8, 8, "fine"), (8, 8, 8, "fine")],
)
def test_one_problem_fails_by_much_alone(base: int, other: int, k: int, judgement: str) -> None:
    assert sampled(base, other, k).judgement == judgement


def test_a_failure_shows_counts_and_a_code_of_each_kind() -> None:
    shown = sampled(8, 0, 8).describe()
    assert "8 of 8 samples pass on the baseline, 0 of 8 here" in shown
    assert "a sample that passes: pass" in shown
    assert "a sample that does not: wrong" in shown


def test_a_sample_that_is_not_what_the_server_counted_is_corrupt() -> None:
    pair = sampled(4, 4, 4)
    first = pair.other[0]
    wrong = replace(first.record, outcome="malformed", error="9 tokens came although 8 were asked for")
    pair = replace(pair, other=(replace(first, record=wrong), *pair.other[1:]))
    assert pair.judgement == "corrupt"
    assert "9 tokens came although 8 were asked for" in pair.describe()
    assert summarise_samples("b8", [pair], GATE).corrupt == 1


def test_samples_cut_on_both_sides_prove_nothing() -> None:
    cut = tuple(solved("truncated", finish="length") for _ in range(3))
    pair = SampledPair(baseline=cut, other=cut, alpha=0.05)
    assert pair.judgement == "cut"
    with pytest.raises(ValueError, match="say anything"):
        compare_samples([pair], GATE)
    assert compare_samples([pair, sampled(2, 2, 3)], GATE).n == 1
    assert summarise_samples("b8", [pair], GATE).comparison == "every sample was cut at its token limit"


def test_a_loss_spread_over_problems_fails_and_is_not_seen_in_one() -> None:
    pairs = [sampled(8, 6, 8) for _ in range(12)]
    compared = compare_samples(pairs, GATE)
    assert compared.failed
    assert compared.p == pytest.approx(2**-12)
    assert compared.baseline[0].value == 1.0
    assert compared.other[0].value == 0.75
    assert {pair.judgement for pair in pairs} == {"fine"}
    assert "pass@1 100.0%" in str(compared)
    assert "pass@8" in str(compared)


@pytest.mark.parametrize(("n", "k", "losing"), [(50, 1, 5), (20, 2, 6), (12, 5, 12)])
def test_a_loss_of_just_the_margin_fails_as_it_does_without_samples(n: int, k: int, losing: int) -> None:
    """1 - 0.9 is less than 0.1 to a computer."""
    pairs = [sampled(k, k - 1, k)] * losing + [sampled(k, k, k)] * (n - losing)
    assert compare_samples(pairs, Gate(margin=losing / (n * k))).failed
    assert not compare_samples(pairs, Gate(margin=(losing + 0.1) / (n * k))).failed


def test_a_gain_never_fails() -> None:
    assert not compare_samples([sampled(2, 8, 8) for _ in range(20)], GATE).failed


def test_too_few_problems_show_no_loss() -> None:
    assert compare_samples([sampled(3, 3, 3)] * 4, GATE).smallest_visible_loss is None
    assert "too few to see any loss" in str(compare_samples([sampled(3, 3, 3)] * 4, GATE))


@pytest.mark.parametrize("n", [20, 60, 164])
def test_what_a_pass_with_one_sample_is_worth_is_what_it_is_without_samples(n: int) -> None:
    """Where nothing differs: there McNemar's power is exact."""
    visible = compare_samples([sampled(1, 1, 1)] * n, GATE).smallest_visible_loss
    assert visible == pytest.approx(GATE.smallest_visible_loss(n), abs=0.003)


def weak(n: int, solved: int, k: int, gate: Gate, chance: float = 0.0, seed: int = 0) -> SampledComparison:
    """A baseline that passes all samples of some problems and none of the others; here each is lost with a chance."""
    random = np.random.default_rng(seed)
    lost = random.binomial(k, chance, solved).tolist()
    return compare_samples([*(sampled(k, k - x, k) for x in lost), *[sampled(0, 0, k)] * (n - solved)], gate)


@pytest.mark.parametrize(
    ("n", "solved", "k"),
    [(20, 5, 4), (30, 6, 4), (40, 8, 4), (40, 12, 4), (40, 40, 4), (60, 7, 8), (164, 9, 2)],
)
@pytest.mark.parametrize("margin", [0.0, 0.05])
def test_a_promised_loss_is_one_that_can_occur_and_that_is_seen(
    n: int, solved: int, k: int, margin: float
) -> None:
    gate = Gate(margin=margin)
    promised = weak(n, solved, k, gate).smallest_visible_loss
    if promised is None:
        assert not weak(n, solved, k, gate, 1.0).failed
        return
    assert promised <= solved / n
    found = sum(weak(n, solved, k, gate, promised * n / solved, seed).failed for seed in range(200)) / 200
    assert 0.75 <= found <= 0.95


@given(
    n=st.integers(2, 40),
    share=st.floats(0, 1),
    k=st.integers(1, 4),
    gate=st.builds(Gate, st.sampled_from([1e-6, 0.001, 0.0625, 0.05, 0.3]), st.floats(0, 0.5)),
)
def test_no_loss_is_promised_where_losing_everything_passes(n: int, share: float, k: int, gate: Gate) -> None:
    solved = round(share * n)
    compared = weak(n, solved, k, gate)
    promised = compared.smallest_visible_loss
    assert (promised is not None) == weak(n, solved, k, gate, 1.0).failed
    assert promised is None or promised <= solved / n
    too_few = f"the baseline solves {solved} of {n} problems, too few to see any loss with 80% power"
    assert (too_few in str(compared)) == (promised is None)
    assert ("would have been seen" in str(compared)) == (promised is not None)


def test_a_report_says_that_too_few_problems_are_solved() -> None:
    pairs = [sampled(4, 4, 4)] * 4 + [sampled(0, 0, 4)] * 16
    assert summarise_samples("b8", pairs, GATE).comparison.endswith(
        "; the baseline solves 4 of 20 problems, too few to see any loss with 80% power: even losing all of them may pass"
    )


RATES = {
    "strong": lambda random, n: random.beta(2.0, 0.7, n),
    "weak": lambda random, n: random.beta(0.3, 1.5, n),
    "few": lambda random, n: np.where(np.arange(n) < n // 5, 1.0, 0.0),
    "few and unsteady": lambda random, n: np.select([np.arange(n) < n // 8, np.arange(n) < n // 3], [1.0, 0.3]),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(("n", "k"), [(30, 3), (60, 8)])
@pytest.mark.parametrize("same", [True, False], ids=["same answers", "other seeds"])
@pytest.mark.parametrize("kind", RATES)
def test_the_loss_that_would_have_been_seen_is_seen_in_four_of_five_comparisons(
    n: int, k: int, same: bool, kind: str
) -> None:
    random = np.random.default_rng(n + same)
    rates = RATES[kind](random, n)

    def compared(loss: float) -> SampledComparison:
        base = random.random((n, k)) < rates[:, None]
        other = base if same else random.random((n, k)) < rates[:, None]
        other = other & (random.random((n, k)) >= loss / rates.mean())
        counts = zip(base.sum(1).tolist(), other.sum(1).tolist(), strict=True)
        return compare_samples([sampled(mine, theirs, k) for mine, theirs in counts], GATE)

    promised = sorted(compared(0.0).smallest_visible_loss or 1.0 for _ in range(15))[7]
    assert promised <= rates.mean()
    found = sum(compared(promised).failed for _ in range(200)) / 200
    assert 0.7 <= found <= 0.95


def test_both_sides_need_as_many_samples() -> None:
    with pytest.raises(ValueError, match="no pair"):
        SampledPair(baseline=(solved(),), other=(), alpha=0.05)
