"""Statistics of the coding eval against scipy, against enumeration, and against their own laws."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

from pytest_ddtree.coding.stats import (
    Comparison,
    Gate,
    compared,
    mcnemar,
    mean_pass_at_k,
    paired_loss,
    paired_mean_loss,
    pass_at_k,
    sign_flip,
    wilson,
)

COUNTS = st.tuples(*[st.integers(0, 40)] * 4).filter(any)
CONFIDENCES = st.sampled_from([0.5, 0.9, 0.95, 0.99])


@st.composite
def samples(draw: st.DrawFn, most: int = 12) -> tuple[int, int]:
    n = draw(st.integers(1, most))
    return n, draw(st.integers(0, n))


class TestRates:
    @given(samples(200), CONFIDENCES)
    def test_wilson_is_scipys(self, counts: tuple[int, int], confidence: float) -> None:
        n, c = counts
        interval = wilson(c, n, confidence)
        theirs = scipy.stats.binomtest(c, n).proportion_ci(confidence, method="wilson")
        assert (interval.low, interval.high) == pytest.approx((theirs.low, theirs.high), abs=1e-12)
        assert 0 <= interval.low <= interval.value <= interval.high <= 1

    @given(samples(8), st.integers(1, 8))
    def test_pass_at_k_is_the_share_of_draws_with_a_right_one(self, counts: tuple[int, int], k: int) -> None:
        n, c = counts
        k = min(k, n)
        draws = list(itertools.combinations([True] * c + [False] * (n - c), k))
        assert pass_at_k(n, c, k) == pytest.approx(sum(map(any, draws)) / len(draws))

    @given(samples(), st.integers(1, 11))
    def test_more_draws_never_pass_less(self, counts: tuple[int, int], k: int) -> None:
        n, c = counts
        k = min(k, n)
        assert pass_at_k(n, c, 1) == pytest.approx(c / n)
        assert pass_at_k(n, c, k) <= pass_at_k(n, c, n) + 1e-12
        assert pass_at_k(n, c, n) == (1.0 if c else 0.0)

    @pytest.mark.parametrize(("n", "c", "k"), [(0, 0, 1), (5, 6, 1), (5, 2, 6), (5, -1, 1), (5, 2, 0)])
    def test_impossible_counts(self, n: int, c: int, k: int) -> None:
        with pytest.raises(ValueError, match="cannot be had"):
            pass_at_k(n, c, k)

    @given(st.lists(st.booleans(), min_size=1, max_size=50))
    def test_one_sample_a_problem_is_wilsons_interval(self, passed: list[bool]) -> None:
        interval = mean_pass_at_k([(1, int(ok)) for ok in passed], 1)
        plain = wilson(sum(passed), len(passed))
        assert (interval.value, interval.low, interval.high) == pytest.approx(
            (plain.value, plain.low, plain.high)
        )

    @given(st.lists(samples(), min_size=1, max_size=30))
    def test_the_interval_holds_its_value_and_never_vanishes(self, counts: list[tuple[int, int]]) -> None:
        interval = mean_pass_at_k(counts, 1)
        assert 0 <= interval.low <= interval.value <= interval.high <= 1
        assert interval.high > interval.low
        assert interval.value == pytest.approx(np.mean([c / n for n, c in counts]))

    def test_samples_of_one_problem_are_not_independent_problems(self) -> None:
        easy_and_hard = [(10, 10)] * 10 + [(10, 0)] * 10
        assert mean_pass_at_k(easy_and_hard, 1).high == pytest.approx(wilson(10, 20).high)

    def test_the_interval_covers(self) -> None:
        rng = np.random.default_rng(1)
        covered = 0
        for _ in range(1_000):
            rates = rng.beta(2, 1, size=60)
            interval = mean_pass_at_k([(4, int(c)) for c in rng.binomial(4, rates)], 1)
            covered += interval.low <= 2 / 3 <= interval.high
        assert 925 <= covered <= 985

    def test_no_problems(self) -> None:
        with pytest.raises(ValueError, match="no problems"):
            mean_pass_at_k([], 1)

    @pytest.mark.parametrize(("c", "n"), [(1, 0), (-1, 2), (3, 2)])
    def test_no_proportion(self, c: int, n: int) -> None:
        with pytest.raises(ValueError, match="no proportion"):
            wilson(c, n)

    def test_no_confidence(self) -> None:
        with pytest.raises(ValueError, match="confidence"):
            wilson(1, 2, 1.0)


class TestPairedTests:
    @given(st.integers(0, 60), st.integers(0, 60))
    def test_mcnemar_is_scipys_binomial_test(self, losses: int, gains: int) -> None:
        expected = (
            scipy.stats.binomtest(losses, losses + gains, alternative="greater").pvalue
            if losses + gains
            else 1.0
        )
        assert mcnemar(losses, gains) == pytest.approx(expected)

    @pytest.mark.parametrize(
        ("losses", "gains", "p"), [(4, 0, 0.0625), (5, 0, 0.03125), (6, 1, 0.0625), (8, 2, 0.0546875)]
    )
    def test_mcnemar_by_hand(self, losses: int, gains: int, p: float) -> None:
        assert mcnemar(losses, gains) == p

    def test_negative_counts(self) -> None:
        with pytest.raises(ValueError, match="negative"):
            mcnemar(-1, 2)

    @given(st.lists(st.integers(-1, 1), max_size=60))
    def test_sign_flip_with_one_sample_is_mcnemar(self, differences: list[int]) -> None:
        assert sign_flip(differences) == pytest.approx(mcnemar(differences.count(1), differences.count(-1)))

    @given(st.lists(st.integers(-5, 5), max_size=9))
    def test_sign_flip_is_the_share_of_all_sign_patterns(self, differences: list[int]) -> None:
        patterns = itertools.product((-1, 1), repeat=len(differences))
        sums = [sum(s * abs(d) for s, d in zip(signs, differences, strict=True)) for signs in patterns]
        assert sign_flip(differences) == pytest.approx(sum(x >= sum(differences) for x in sums) / len(sums))

    @given(st.lists(st.integers(-5, 5), min_size=2, max_size=8))
    def test_sign_flip_is_scipys_permutation_test(self, differences: list[int]) -> None:
        result = scipy.stats.permutation_test(
            (np.array(differences),),
            np.sum,
            permutation_type="samples",
            n_resamples=10_000,
            alternative="greater",
        )
        assert sign_flip(differences) == pytest.approx(result.pvalue)

    def test_sign_flip_of_a_large_set(self) -> None:
        assert sign_flip([3, -3] * 500) == pytest.approx(0.5, abs=0.02)
        assert sign_flip([1] * 1_000) == pytest.approx(2.0**-1000)

    @given(
        st.lists(st.floats(-1, 1).map(lambda one: round(one, 9)), min_size=2, max_size=30).filter(
            lambda d: np.std(d) > 1e-6
        ),
        CONFIDENCES,
    )
    def test_mean_loss_is_scipys_t_interval(self, differences: list[float], confidence: float) -> None:
        interval = paired_mean_loss(differences, confidence)
        theirs = scipy.stats.ttest_1samp(differences, 0).confidence_interval(confidence)
        assert (interval.low, interval.high) == pytest.approx((theirs.low, theirs.high))

    def test_mean_loss_of_one_problem(self) -> None:
        with pytest.raises(ValueError, match="two problems"):
            paired_mean_loss([0.5])


class TestPairedInterval:
    @given(COUNTS)
    def test_turning_the_pair_round_turns_the_interval_round(self, counts: tuple[int, int, int, int]) -> None:
        both, losses, gains, neither = counts
        one, other = paired_loss(both, losses, gains, neither), paired_loss(both, gains, losses, neither)
        assert (one.value, one.low, one.high) == pytest.approx((-other.value, -other.high, -other.low))
        assert -1 <= one.low <= one.value <= one.high <= 1

    def test_it_covers_what_it_says(self) -> None:
        """Exact coverage for 30 pairs: a sum over all outcomes."""
        n, rates = 30, (0.7, 0.1, 0.05, 0.15)
        covered = 0.0
        for losses in range(n + 1):
            for gains in range(n - losses + 1):
                for both in range(n - losses - gains + 1):
                    counts = (both, losses, gains, n - both - losses - gains)
                    interval = paired_loss(*counts)
                    if interval.low <= rates[1] - rates[2] <= interval.high:
                        covered += float(scipy.stats.multinomial.pmf(counts, n, rates))
        assert 0.93 <= covered <= 0.985

    def test_pairing_narrows_the_interval(self) -> None:
        paired = paired_loss(135, 4, 3, 22)
        base, other = wilson(139, 164), wilson(138, 164)
        assert paired.value == pytest.approx(base.value - other.value)
        # Newcombe's interval of independent proportions (1998, 17:873, method 10), which would be taken without pairs.
        unpaired = math.hypot(base.value - base.low, other.high - other.value) + math.hypot(
            base.high - base.value, other.value - other.low
        )
        assert (paired.high - paired.low) < 0.5 * unpaired

    @pytest.mark.parametrize("counts", [(0, 0, 0, 0), (1, -1, 0, 0)])
    def test_no_pairs(self, counts: tuple[int, int, int, int]) -> None:
        with pytest.raises(ValueError, match="no pairs"):
            paired_loss(*counts)


class TestGate:
    @given(st.integers(1, 60), st.floats(0, 0.3), st.floats(0, 0.2), st.sampled_from([0.01, 0.05, 0.2]))
    def test_noise_alone_fails_at_most_at_the_rate_of_alpha(
        self, n: int, noise: float, margin: float, alpha: float
    ) -> None:
        assert Gate(alpha, margin).power(n, 0.0, noise) <= alpha + 1e-9

    @given(st.integers(1, 12), st.floats(0, 0.3), st.floats(0, 0.4), st.sampled_from([0.0, 0.1, 0.25]))
    def test_power_is_the_sum_over_all_outcomes(
        self, n: int, noise: float, loss: float, margin: float
    ) -> None:
        gate = Gate(0.1, margin)
        rates = (noise + loss, noise, 1 - 2 * noise - loss)
        total = 0.0
        for losses in range(n + 1):
            for gains in range(n - losses + 1):
                if gate.fails(n, losses, gains):
                    rest = n - losses - gains
                    ways = math.comb(n, losses) * math.comb(n - losses, gains)
                    total += ways * rates[0] ** losses * rates[1] ** gains * rates[2] ** rest
        assert gate.power(n, loss, noise) == pytest.approx(total, abs=1e-9)

    @given(st.integers(5, 200), st.floats(0, 0.1), st.floats(0, 0.4), st.floats(0, 0.4))
    def test_a_larger_loss_is_seen_more_often(self, n: int, noise: float, one: float, other: float) -> None:
        low, high = sorted((one, other))
        assert Gate().power(n, low, noise) <= Gate().power(n, high, noise) + 1e-9

    @pytest.mark.parametrize(
        ("n", "loss", "power"),
        [(164, 0.05, 0.63), (378, 0.05, 0.93), (542, 0.05, 0.99), (164, 0.03, 0.32), (880, 0.03, 0.95)],
    )
    def test_power_of_known_sets_with_two_percent_noise(self, n: int, loss: float, power: float) -> None:
        assert Gate().power(n, loss, 0.02) == pytest.approx(power, abs=0.015)

    @given(st.integers(1, 120), st.floats(0, 0.1), st.sampled_from([0.0, 0.02, 0.1]))
    def test_the_smallest_visible_loss_has_that_power(self, n: int, noise: float, margin: float) -> None:
        gate = Gate(margin=margin)
        seen = gate.smallest_visible_loss(n, noise)
        if seen is None:
            assert gate.power(n, 1 - 2 * noise, noise) < 0.8
        else:
            assert gate.power(n, seen, noise) >= 0.8 - 1e-9
            assert seen < 2e-5 or gate.power(n, max(0.0, seen - 1e-4), noise) < 0.8

    @given(
        st.integers(1, 12),
        st.floats(0, 1),
        st.floats(0, 1),
        st.floats(0, 1),
        st.sampled_from([0.0, 0.1, 0.25]),
    )
    def test_power_of_a_weak_baseline_is_the_sum_over_all_outcomes(
        self, n: int, share: float, lost: float, gained: float, margin: float
    ) -> None:
        """Only what it solves can be lost, only the rest gained."""
        gate = Gate(0.1, margin)
        solved = round(share * n)
        noise = min(lost * solved, gained * (n - solved)) / n
        gained = noise * n / (n - solved) if n > solved else 0.0

        def chance(count: int, of: int, rate: float) -> float:
            return math.comb(of, count) * rate**count * (1 - rate) ** (of - count)

        total = sum(
            chance(losses, solved, lost) * chance(gains, n - solved, gained)
            for losses in range(solved + 1)
            for gains in range(n - solved + 1)
            if gate.fails(n, losses, gains)
        )
        power = gate.power(n, max(0.0, lost * solved / n - noise), noise, solved=solved)
        assert power == pytest.approx(total, abs=1e-9)

    @given(st.integers(1, 120), st.floats(0, 1), st.floats(0, 0.2), st.sampled_from([0.0, 0.02, 0.1]))
    def test_the_smallest_visible_loss_of_a_weak_baseline_can_occur_and_has_that_power(
        self, n: int, share: float, noise: float, margin: float
    ) -> None:
        gate = Gate(margin=margin)
        solved = round(share * n)
        noise = min(noise, (n - solved) / n)
        most = solved / n - noise
        seen = gate.smallest_visible_loss(n, noise, solved=solved)
        if seen is None:
            assert most < 0 or gate.power(n, most, noise, solved=solved) < 0.8
        else:
            assert seen <= most
            assert gate.power(n, seen, noise, solved=solved) >= 0.8 - 1e-9
            assert seen < 2e-5 or gate.power(n, max(0.0, seen - 1e-4), noise, solved=solved) < 0.8

    @given(st.integers(1, 200), st.sampled_from([0.0, 0.02, 0.1]))
    def test_where_everything_is_solved_anything_can_be_lost(self, n: int, margin: float) -> None:
        gate = Gate(margin=margin)
        assert gate.smallest_visible_loss(n, solved=n) == gate.smallest_visible_loss(n)

    def test_four_problems_show_nothing(self) -> None:
        assert Gate().smallest_visible_loss(4) is None
        assert Gate().smallest_visible_loss(5) is not None

    def test_the_margin_counts_net_losses(self) -> None:
        assert Gate(margin=0.0).fails(100, 5, 0)
        assert Gate(margin=0.05).fails(100, 5, 0)
        assert not Gate(margin=0.051).fails(100, 5, 0)
        assert not Gate(margin=0.05).fails(100, 14, 10)

    @pytest.mark.parametrize("settings", [{"alpha": 0.0}, {"alpha": 1.0}, {"margin": -0.1}, {"margin": 1.0}])
    def test_impossible_settings(self, settings: dict[str, float]) -> None:
        with pytest.raises(ValueError, match="alpha must lie"):
            Gate(**settings)

    def test_impossible_rates(self) -> None:
        with pytest.raises(ValueError, match="no rates"):
            Gate().power(10, 0.9, 0.2)
        with pytest.raises(ValueError, match="noise must"):
            Gate().smallest_visible_loss(10, 0.6)
        for solved, loss, noise in ((11, 0.1, 0.0), (-1, 0.0, 0.0), (2, 0.3, 0.0), (8, 0.1, 0.3)):
            with pytest.raises(ValueError, match="no rates"):
                Gate().power(10, loss, noise, solved=solved)


class TestComparison:
    @given(st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=60))
    def test_counts(self, pairs: list[tuple[bool, bool]]) -> None:
        result = compared([a for a, _ in pairs], [b for _, b in pairs])
        assert result.n == len(pairs)
        assert result.both + result.losses == sum(a for a, _ in pairs)
        assert result.both + result.gains == sum(b for _, b in pairs)
        assert result.failed == (result.losses > result.gains and result.p <= 0.05)

    def test_it_says_what_it_is_worth(self) -> None:
        text = str(Comparison(40, 3, 2, 15))
        for part in (
            "no regression detected",
            "n=60",
            "lost 3",
            "gained 2",
            "p=0.5",
            "would have been seen with 80% power",
        ):
            assert part in text
        assert str(Comparison(30, 8, 0, 2)).startswith("regression: n=40, lost 8, gained 0")
        assert "too few to see any loss" in str(Comparison(3, 0, 0, 1))

    @given(
        st.integers(1, 60),
        st.floats(0, 1),
        st.builds(Gate, st.sampled_from([1e-6, 0.001, 0.05, 0.0625, 0.3]), st.floats(0, 0.5)),
    )
    def test_it_promises_nothing_where_losing_all_that_is_solved_passes(
        self, n: int, share: float, gate: Gate
    ) -> None:
        solved = round(share * n)
        result = Comparison(solved, 0, 0, n - solved, gate)
        all_lost = Comparison(0, solved, 0, n - solved, gate)
        assert (result.smallest_visible_loss is not None) == all_lost.failed
        too_few = f"the baseline solves {solved} of {n} problems, too few to see any loss with 80% power"
        assert (too_few in str(result)) == (not all_lost.failed)
        assert ("would have been seen" in str(result)) == all_lost.failed

    @pytest.mark.parametrize("counts", [(2, 0, 3, 15), (0, 1, 2, 3), (0, 0, 4, 0), (0, 0, 0, 4)])
    def test_more_noise_than_is_solved_shows_nothing(self, counts: tuple[int, int, int, int]) -> None:
        assert Comparison(*counts).smallest_visible_loss is None
        assert "even losing all of them may pass" in str(Comparison(*counts))

    @pytest.mark.parametrize(
        ("steady", "unsteady", "rate", "never"),
        [(40, 10, 0.5, 10), (45, 15, 0.1, 0), (12, 0, 0.0, 48), (8, 0, 0.0, 32), (20, 12, 0.2, 60)],
    )
    def test_the_loss_that_would_have_been_seen_is_seen_in_four_of_five_comparisons(
        self, steady: int, unsteady: int, rate: float, never: int
    ) -> None:
        """Problems that are always solved, sometimes, and never; the noise of each comparison is what it saw itself."""
        random = np.random.default_rng(7)
        rates = np.array([1.0] * steady + [rate] * unsteady + [0.0] * never)

        def one(loss: float) -> Comparison:
            base = random.random(len(rates)) < rates
            other = (random.random(len(rates)) < rates) & (random.random(len(rates)) >= loss / rates.mean())
            return compared(base.tolist(), other.tolist(), Gate(margin=0.02))

        found = []
        for _ in range(100):
            promised = one(0.0).smallest_visible_loss
            assert promised is not None
            assert promised <= 1.5 * rates.mean()
            found += [one(promised).failed for _ in range(10)]
        assert 0.74 <= sum(found) / len(found) <= 0.9

    @pytest.mark.parametrize(("one", "other"), [([], []), ([True], [])])
    def test_no_pairs(self, one: list[bool], other: list[bool]) -> None:
        with pytest.raises(ValueError, match="no pairs"):
            compared(one, other)
