"""Several sampled answers a problem: pass@k with intervals, and the paired test between two servers. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Final

import numpy as np
from scipy import special

from pytest_ddtree.coding.checking import printable
from pytest_ddtree.coding.pairs import Judgement, Solved, contradiction
from pytest_ddtree.coding.stats import (
    Gate,
    Interval,
    mean_pass_at_k,
    nothing_visible,
    paired_mean_loss,
    sign_flip,
)

_POWER: Final = 0.8
_PRECISION: Final = 1e-4
_ROUNDING: Final = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledPair:
    """The samples of the baseline and of a config for one problem, as many of each. `alpha` is the level of this one problem."""

    baseline: tuple[Solved, ...]
    other: tuple[Solved, ...]
    alpha: float

    def __post_init__(self) -> None:
        if not self.baseline or len(self.baseline) != len(self.other):
            raise ValueError(
                f"no pair of samples: {len(self.baseline)} of the baseline, {len(self.other)} here"
            )

    @property
    def problem(self) -> str:
        return self.other[0].problem

    @property
    def k(self) -> int:
        return len(self.other)

    @property
    def counts(self) -> tuple[int, int]:
        """Samples that pass: the baseline's, this config's."""
        return sum(one.passed for one in self.baseline), sum(one.passed for one in self.other)

    @property
    def p(self) -> float:
        """One-sided p of Fisher's exact test that fewer samples pass here; a single problem shows only much."""
        base, other = self.counts
        total, n = base + other, self.k
        return sum(
            math.comb(n, x) * math.comb(n, total - x) for x in range(max(0, total - n), other + 1)
        ) / math.comb(2 * n, total)

    @property
    def wrong(self) -> tuple[str, ...]:
        """What samples of this config contradict: their request, or the server's own count."""
        return tuple(why for one in self.other if (why := contradiction(one.record)) is not None)

    @property
    def judgement(self) -> Judgement:
        """`corrupt` where a sample is not what was asked or counted, `lost` where chance does not explain the difference, `cut` where
        every sample of both ran into its token limit."""
        if self.wrong:
            return "corrupt"
        if all(one.cut for one in (*self.baseline, *self.other)):
            return "cut"
        return "lost" if self.p <= self.alpha else "fine"

    @property
    def identical(self) -> int:
        """Samples that are the same text on both servers, of the same seed."""
        return sum(a.record.text == b.record.text for a, b in zip(self.baseline, self.other, strict=True))

    def describe(self) -> str:
        """Counts, p, and one code of each kind, for the report of a failure."""
        base, other = self.counts
        lines = [
            (
                f"{self.problem}: {self.judgement}: {base} of {self.k} samples pass on the baseline, {other} of {self.k} here "
                f"(p={self.p:.2g}, level {self.alpha:.2g})"
            ),
            *(f"  because {why}" for why in self.wrong),
        ]
        for who, solved in (
            ("baseline, a sample that passes", next((s for s in self.baseline if s.passed), None)),
            ("this config, a sample that does not", next((s for s in self.other if not s.passed), None)),
        ):
            if solved is not None:
                code = solved.extraction.code or "no code to run"
                detail = [] if solved.passed else [solved.outcome.describe()]
                lines += ["", f"--- {who}: {solved.state}", *detail, printable(code.rstrip("\n"))]
        return "\n".join(lines)


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledComparison:
    """pass@1 and pass@k of both servers, and the one-sided exact sign-flip test over the problems."""

    n: int
    k: int
    baseline: tuple[Interval, Interval]
    """pass@1 and pass@k."""
    other: tuple[Interval, Interval]
    loss: Interval | None
    """Mean loss of pass@1 over the problems, with Student's interval; None for a single problem."""
    passing: tuple[int, ...]
    """Of each problem the baseline's samples that pass: what can be lost."""
    changed: int
    p: float
    gate: Gate

    @property
    def failed(self) -> bool:
        """Whether this is a regression: beyond chance, and by at least the margin."""
        net = self.baseline[0].value - self.other[0].value
        return self.gate.reached_by(net) and self.p <= self.gate.alpha

    @property
    def solved(self) -> int:
        """Number of problems of which the baseline passes a sample."""
        return sum(1 for count in self.passing if count)

    @property
    def smallest_visible_loss(self) -> float | None:
        """The loss of pass@1 that about 80 % of such comparisons would have shown; None where no loss could have.

        A true loss comes on top of the spread that was seen, and only what passes on the baseline can be lost: each such sample with
        the same chance. With 80 % the net loss must then reach the margin and what the sign-flip test takes for chance (in normal
        approximation), and so many problems must lose samples that the test can reject at all, 2^-m <= alpha.
        """
        if self.loss is None or not self._shows(1.0):
            return None
        low, high = 0.0, 1.0
        while high - low > _PRECISION:
            middle = (low + high) / 2
            low, high = (low, middle) if self._shows(middle) else (middle, high)
        return high * self.baseline[0].value

    def _shows(self, chance: float) -> bool:
        """Whether it is found in 80 % of comparisons that each sample that passes on the baseline is lost with this chance."""
        assert self.loss is not None
        quantile = NormalDist().inv_cdf
        error = (self.loss.high - self.loss.low) / 2 / float(special.stdtrit(self.n - 1, 0.975))
        rates = np.array(self.passing) / self.k
        loss = chance * float(rates.mean())
        thinned = loss * (1 - chance) / (self.k * self.n)
        # Half of the spread is this config's own, and goes with the samples that are lost; the rates squared have some of the other.
        variance = error**2 * (1 + (1 - chance) ** 2) / 2 + thinned
        squares = error**2 * (1 - chance) + thinned + float(((chance * rates) ** 2).sum()) / self.n**2
        # Without any spread no problem gains, and it is only how many lose that the test asks for.
        by_chance = quantile(1 - self.gate.alpha) * math.sqrt(squares) if error > _ROUNDING else 0.0
        if loss - max(self.gate.margin, by_chance) < quantile(_POWER) * math.sqrt(variance) - _ROUNDING:
            return False
        least = max(1, math.ceil(-math.log2(self.gate.alpha) - _ROUNDING))
        return _at_least(least, [1 - (1 - chance) ** count for count in self.passing if count]) >= _POWER

    def __str__(self) -> str:
        verdict = "regression" if self.failed else "no regression detected"
        at = [f"pass@1 {self.baseline[0]} -> {self.other[0]}"]
        if self.k > 1:
            at.append(f"pass@{self.k} {self.baseline[1]} -> {self.other[1]}")
        loss = "" if self.loss is None else f", loss of pass@1 {self.loss}"
        seen = self.smallest_visible_loss
        worth = (
            f"a loss of about {seen:.1%} or more would have been seen with 80% power"
            if seen is not None
            else nothing_visible(self.solved, self.n)
        )
        return (
            f"{verdict}: n={self.n} problems, {self.k} samples each, {', '.join(at)}{loss}, {self.changed} problems differ, "
            f"p={self.p:.3g} (sign flip; gate: p<={self.gate.alpha:g} and loss>={self.gate.margin:.1%}); {worth}"
        )


def compare_samples(pairs: Sequence[SampledPair], gate: Gate) -> SampledComparison:
    """The paired comparison over all problems that say something. Raises ValueError without any."""
    told = [pair for pair in pairs if pair.judgement != "cut"]
    if not told:
        raise ValueError("no problem whose samples say anything")
    k = told[0].k
    counts = [pair.counts for pair in told]

    def rates(side: int) -> tuple[Interval, Interval]:
        ours = [(k, pair[side]) for pair in counts]
        return mean_pass_at_k(ours, 1), mean_pass_at_k(ours, k)

    differences = [base - other for base, other in counts]
    return SampledComparison(
        n=len(told),
        k=k,
        baseline=rates(0),
        other=rates(1),
        loss=paired_mean_loss([difference / k for difference in differences]) if len(told) > 1 else None,
        passing=tuple(base for base, _ in counts),
        changed=sum(1 for difference in differences if difference),
        p=sign_flip(differences),
        gate=gate,
    )


def _at_least(count: int, chances: Sequence[float]) -> float:
    """The chance that at least so many of some independent things happen."""
    fewer = np.zeros(count)
    fewer[0] = 1.0
    for chance in chances:
        fewer[1:] = fewer[1:] * (1 - chance) + fewer[:-1] * chance
        fewer[0] *= 1 - chance
    return 1.0 - float(fewer.sum())
