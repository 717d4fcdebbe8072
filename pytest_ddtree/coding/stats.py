"""Statistics of a coding eval: rates with intervals, and paired tests of one server against another.

The same problems are put to both servers, so everything that compares them is paired: unpaired intervals are
more than twice as wide on the same data. Rates and differences are fractions of 1; a loss is positive.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist
from typing import Final

import numpy as np
from numpy.typing import NDArray
from scipy import special

_ROUNDING: Final = 1e-9


@dataclass(frozen=True, slots=True)
class Interval:
    """An estimate with the limits of its confidence interval."""

    value: float
    low: float
    high: float
    confidence: float = 0.95

    def __str__(self) -> str:
        return f"{self.value:.1%} [{self.low:.1%}, {self.high:.1%}]"


def wilson(successes: float, n: float, confidence: float = 0.95) -> Interval:
    """Wilson's score interval of a proportion (Wilson 1927). `n` may be an effective number of trials.

    Raises ValueError unless 0 <= successes <= n, n > 0 and 0 < confidence < 1.
    """
    if not 0 <= successes <= n or n <= 0:
        raise ValueError(f"no proportion: {successes} of {n}")
    z = _z(confidence)
    p = successes / n
    centre = (p + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    return Interval(p, max(0.0, min(p, centre - half)), min(1.0, max(p, centre + half)), confidence)


def pass_at_k(n: int, correct: int, k: int) -> float:
    """Unbiased estimate of the chance that one of `k` samples is right, from `correct` of `n` samples.

    1 - C(n - correct, k) / C(n, k) (Chen et al. 2021, arXiv 2107.03374). Raises ValueError unless
    0 <= correct <= n and 1 <= k <= n.
    """
    if not 0 <= correct <= n or not 1 <= k <= n:
        raise ValueError(f"pass@{k} cannot be had from {correct} of {n} samples")
    return 1.0 - math.comb(n - correct, k) / math.comb(n, k)


def mean_pass_at_k(counts: Sequence[tuple[int, int]], k: int, confidence: float = 0.95) -> Interval:
    """pass@k of a set of problems, from (samples, right ones) of each problem.

    Problems are the independent units, not samples. The interval is Wilson's with the number of independent
    trials that the spread over the problems stands for (at most the number of samples), so that it does not
    shrink to nothing where all problems agree. Raises ValueError for no problems.
    """
    if not counts:
        raise ValueError("pass@k of no problems")
    values = np.array([pass_at_k(n, correct, k) for n, correct in counts])
    mean = float(values.mean())
    variance = float(values.var()) / len(values)
    most = float(len(values) if mean in (0.0, 1.0) else sum(n for n, _ in counts))
    trials = min(most, mean * (1 - mean) / variance) if variance > 0 else most
    return wilson(mean * trials, trials, confidence)


def mcnemar(losses: int, gains: int) -> float:
    """One-sided exact McNemar test: how likely at least so many losses among the flips are by chance.

    A loss is a problem that only the baseline solves, a gain one that only the other server solves. Returns
    P(X >= losses) for X binomial with losses + gains trials of 1/2; 1 without flips.
    """
    if losses < 0 or gains < 0:
        raise ValueError(f"negative counts: {losses} losses, {gains} gains")
    flips = losses + gains
    return sum(math.comb(flips, lost) for lost in range(losses, flips + 1)) / (1 << flips)


def sign_flip(differences: Sequence[int]) -> float:
    """One-sided exact paired sign-flip test for several samples a problem.

    `differences` are, for each problem, the baseline's right samples minus the other server's, from the same
    number of samples each. Under the hypothesis of no difference each sign is as likely as the other: returns
    P(sum of +-|d| >= sum of d). With one sample a problem this is McNemar's test.
    """
    sizes = [abs(difference) for difference in differences if difference]
    observed = sum(differences)
    reach = sum(sizes)
    chances = np.zeros(2 * reach + 1)
    chances[reach] = 1.0
    for size in sizes:
        chances = 0.5 * (np.roll(chances, size) + np.roll(chances, -size))
    return min(1.0, float(chances[observed + reach :].sum()))


def paired_mean_loss(differences: Sequence[float], confidence: float = 0.95) -> Interval:
    """Mean of per-problem differences of rates with Student's interval. Raises ValueError for fewer than 2."""
    values = np.asarray(differences, dtype=float)
    if len(values) < 2:
        raise ValueError("an interval needs two problems at least")
    mean = float(values.mean())
    quantile = float(special.stdtrit(len(values) - 1, 0.5 + confidence / 2))
    half = quantile * float(values.std(ddof=1)) / math.sqrt(len(values))
    return Interval(mean, mean - half, mean + half, confidence)


def paired_loss(both: int, losses: int, gains: int, neither: int, confidence: float = 0.95) -> Interval:
    """Net loss of a paired comparison, (losses - gains) / n, with Newcombe's interval.

    The hybrid score interval for paired proportions with the continuity-corrected phi (Newcombe 1998,
    Statistics in Medicine 17:2635, method 10). Raises ValueError for negative counts or no pairs.
    """
    counts = (both, losses, gains, neither)
    n = sum(counts)
    if min(counts) < 0 or n == 0:
        raise ValueError(f"no pairs: {counts}")
    base, other = wilson(both + losses, n, confidence), wilson(both + gains, n, confidence)
    margins = (both + losses) * (gains + neither) * (both + gains) * (losses + neither)
    product = both * neither - losses * gains
    corrected = max(product - n / 2, 0.0) if product > 0 else float(product)
    phi = corrected / math.sqrt(margins) if margins else 0.0
    loss = (losses - gains) / n

    def reach(first: float, second: float) -> float:
        return math.sqrt(max(0.0, first * first - 2 * phi * first * second + second * second))

    low = loss - reach(base.value - base.low, other.high - other.value)
    high = loss + reach(base.high - base.value, other.value - other.low)
    return Interval(loss, max(-1.0, low), min(1.0, high), confidence)


@dataclass(frozen=True, slots=True)
class Gate:
    """When a paired comparison fails: p at most `alpha`, and a net loss of at least `margin` of the problems."""

    alpha: float = 0.05
    margin: float = 0.0

    def __post_init__(self) -> None:
        if not 0 < self.alpha < 1 or not 0 <= self.margin < 1:
            raise ValueError(f"alpha must lie between 0 and 1, margin from 0 to below 1: {self}")

    def least_net_loss(self, n: int) -> int:
        """The smallest number of net losses among `n` problems that reaches the margin; at least 1."""
        return max(1, math.ceil(self.margin * n - _ROUNDING))

    def reached_by(self, loss: float) -> bool:
        """Whether a net loss, a fraction of 1, is one and reaches the margin."""
        return loss > _ROUNDING and loss >= self.margin - _ROUNDING

    def fails(self, n: int, losses: int, gains: int) -> bool:
        """Whether so many flips among `n` problems are a regression."""
        return losses - gains >= self.least_net_loss(n) and mcnemar(losses, gains) <= self.alpha

    def power(self, n: int, loss: float, noise: float = 0.0, *, solved: int | None = None) -> float:
        """The chance that the gate fails where a true net `loss` comes on top of noise.

        `noise` is the rate at which problems flip for no reason, each way; both are rates of the `n` problems. With `solved`, as many
        of them are solved by the baseline: only these can be lost, only the others gained. Without, any can be either. Exact: a sum
        over the outcomes. Raises ValueError if the rates do not fit into 1, or into what can be lost and gained.
        """
        lost, gained = noise + loss, noise
        if n < 1 or loss < 0 or noise < 0 or lost + gained > 1 + _ROUNDING:
            raise ValueError(f"no rates: n={n}, loss={loss}, noise={noise}")
        if solved is not None:
            return self._power_of_solved(n, solved, lost, gained)
        flip = min(1.0, lost + gained)
        if flip == 0:
            return 0.0
        flips = np.arange(n + 1)
        weights = _binomial(n, flip)
        needed = np.array(_losses_needed(self, n))
        tail = np.where(needed > flips, 0.0, special.bdtrc(needed - 1.0, flips, lost / flip))
        return float(np.clip((weights * tail).sum(), 0.0, 1.0))

    def smallest_visible_loss(
        self, n: int, noise: float = 0.0, power: float = 0.8, *, solved: int | None = None
    ) -> float | None:
        """The smallest true net loss that `n` problems show with the given power; None if not even the largest, of all that are `solved`.

        This is what "no regression found" is worth: losses below it go unseen more often than 1 - power.
        """
        if not 0 <= noise <= (0.5 if solved is None else 1.0):
            raise ValueError(f"noise must lie between 0 and 0.5: {noise}")
        low, high = 0.0, 1.0 - 2 * noise if solved is None else solved / n - noise
        if high < 0 or self.power(n, high, noise, solved=solved) < power:
            return None
        while high - low > 1e-5:
            middle = (low + high) / 2
            seen = self.power(n, middle, noise, solved=solved) >= power
            low, high = (low, middle) if seen else (middle, high)
        return high

    def _power_of_solved(self, n: int, solved: int, lost: float, gained: float) -> float:
        """Losses among the solved problems and gains among the others, each at random with the rate that makes so many of all."""
        others = n - solved
        if not 0 <= solved <= n or lost * n > solved + _ROUNDING * n or gained * n > others + _ROUNDING * n:
            raise ValueError(f"no rates: {solved} of {n} solved, {lost} lost, {gained} gained")
        if not solved:
            return 0.0
        weights = _binomial(others, min(1.0, gained * n / others) if others else 0.0)
        needed = np.array(_losses_needed_beside(self, n)[: others + 1])
        tail = np.where(
            needed > solved,
            0.0,
            special.bdtrc(np.minimum(needed - 1.0, solved), solved, min(1.0, lost * n / solved)),
        )
        return float(np.clip((weights * tail).sum(), 0.0, 1.0))


@dataclass(frozen=True, slots=True)
class Comparison:
    """Counts of a paired comparison over the same problems, and what the gate says of them."""

    both: int
    losses: int
    gains: int
    neither: int
    gate: Gate = Gate()

    @property
    def n(self) -> int:
        """Number of problems."""
        return self.both + self.losses + self.gains + self.neither

    @property
    def solved(self) -> int:
        """Number of problems that the baseline solves."""
        return self.both + self.losses

    @property
    def p(self) -> float:
        """p of the one-sided exact McNemar test."""
        return mcnemar(self.losses, self.gains)

    @property
    def failed(self) -> bool:
        """Whether this is a regression."""
        return self.gate.fails(self.n, self.losses, self.gains)

    @property
    def smallest_visible_loss(self) -> float | None:
        """The loss that this comparison would have shown in four of five cases, given the flips it saw; None where none would.

        Only what the baseline solves can be lost. The gains are taken as noise, the same each way: no loss makes them.
        """
        return self.gate.smallest_visible_loss(self.n, self.gains / self.n, solved=self.solved)

    def __str__(self) -> str:
        """One line: n, discordant pairs, net loss with its interval, p, and what would have been seen."""
        loss = paired_loss(self.both, self.losses, self.gains, self.neither)
        seen = self.smallest_visible_loss
        worth = (
            f"a loss of {seen:.1%} or more would have been seen with 80% power"
            if seen is not None
            else nothing_visible(self.solved, self.n)
        )
        verdict = "regression" if self.failed else "no regression detected"
        return (
            f"{verdict}: n={self.n}, lost {self.losses}, gained {self.gains}, net loss {loss},"
            f" p={self.p:.3g} (gate: p<={self.gate.alpha:g} and net loss>={self.gate.margin:.1%}); {worth}"
        )


def nothing_visible(solved: int, n: int) -> str:
    """What a comparison in which no loss would have been seen is worth, in words."""
    return f"the baseline solves {solved} of {n} problems, too few to see any loss with 80% power: even losing all of them may pass"


def compared(baseline: Sequence[bool], other: Sequence[bool], gate: Gate | None = None) -> Comparison:
    """Count pairs of the same problems. Raises ValueError for different lengths or no pairs."""
    if not baseline or len(baseline) != len(other):
        raise ValueError(
            f"no pairs: {len(baseline)} results of the baseline, {len(other)} of the other server"
        )
    pairs = list(zip(map(bool, baseline), map(bool, other), strict=True))
    return Comparison(
        both=pairs.count((True, True)),
        losses=pairs.count((True, False)),
        gains=pairs.count((False, True)),
        neither=pairs.count((False, False)),
        gate=gate or Gate(),
    )


def _z(confidence: float) -> float:
    if not 0 < confidence < 1:
        raise ValueError(f"confidence must lie between 0 and 1: {confidence}")
    return NormalDist().inv_cdf(0.5 + confidence / 2)


def _binomial(n: int, p: float) -> NDArray[np.float64]:
    """Probabilities of 0 to n successes."""
    k = np.arange(n + 1)
    logs = special.gammaln(n + 1) - special.gammaln(k + 1) - special.gammaln(n - k + 1)
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = logs + special.xlogy(k, p) + special.xlog1py(n - k, -p)
    weights: NDArray[np.float64] = np.exp(logs)
    return weights


@lru_cache(maxsize=64)
def _losses_needed(gate: Gate, n: int) -> tuple[int, ...]:
    """For each number of flips the fewest losses among them that fail; flips + 1 where none do."""
    needed: list[int] = []
    least = gate.least_net_loss(n)
    lost = 0
    for flips in range(n + 1):
        lost = max(lost, math.ceil((flips + least) / 2))
        while lost <= flips and float(special.bdtrc(lost - 1, flips, 0.5)) > gate.alpha:
            lost += 1
        needed.append(lost)
    return tuple(needed)


@lru_cache(maxsize=64)
def _losses_needed_beside(gate: Gate, n: int) -> tuple[int, ...]:
    """For each number of gains the fewest losses beside them that fail."""
    needed: list[int] = []
    least = gate.least_net_loss(n)
    lost = 0
    for gains in range(n + 1):
        lost = max(lost, gains + least)
        while float(special.bdtrc(lost - 1, lost + gains, 0.5)) > gate.alpha:
            lost += 1
        needed.append(lost)
    return tuple(needed)
