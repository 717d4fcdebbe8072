"""Losses from paired rounds: the same prompts before and now, so that easy and hard prompts cancel. Pure.

A loss is a logarithm: log(before / now) for what should be high, log(now / before) for what should be low. 0.03 is 3 % worse.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from pytest_ddtree import tails
from pytest_ddtree.results.metrics import Values


@lru_cache(maxsize=4096)
def t_quantile(probability: float, freedom: float) -> float:
    """Quantile of Student's t."""
    return tails.t_quantile(probability, freedom)


@lru_cache(maxsize=4096)
def t_shift(limit: float, freedom: float, power: float) -> float:
    """Standard errors from zero at which t is above the limit with this power."""
    return tails.t_shift(limit, freedom, power)


@dataclass(frozen=True, slots=True)
class Loss:
    """A mean loss with its standard error; infinite error for a single round, which says nothing about noise."""

    mean: float
    error: float
    freedom: float
    n: int

    @property
    def share(self) -> float:
        """The loss as a share: 0.03 is 3 % worse, negative is better."""
        return 1.0 - math.exp(-self.mean)

    def at_least(self, alpha: float) -> float:
        """Lower confidence bound, wrong with probability `alpha`; minus infinity without an error."""
        return self.mean - self._reach(alpha)

    def at_most(self, alpha: float) -> float:
        """Upper confidence bound, wrong with probability `alpha`."""
        return self.mean + self._reach(alpha)

    def visible(self, tolerance: float, alpha: float, power: float = 0.95) -> float:
        """The smallest true loss (a share) that as many observations with this noise would show with this power beyond a tolerance
        (a share) at level `alpha`."""
        if math.isinf(self.error):
            return 1.0
        shift = t_shift(t_quantile(1 - alpha, self.freedom), self.freedom, power) if self.error else 0.0
        return 1.0 - math.exp(-(log_share(tolerance) + shift * self.error))

    def _reach(self, alpha: float) -> float:
        if math.isinf(self.error):
            return math.inf
        return t_quantile(1 - alpha, self.freedom) * self.error if self.error else 0.0


def log_share(share: float) -> float:
    """A loss given as a share, as a logarithm."""
    return -math.log1p(-share)


def paired_loss(before: Values, now: Values, *, higher_is_better: bool) -> Loss | None:
    """The mean loss over the rounds that both sides have; None when they share none. Values must be positive."""
    shared = sorted(before.keys() & now.keys())
    if not shared:
        return None
    sign = 1.0 if higher_is_better else -1.0
    return mean_loss([sign * math.log(before[number] / now[number]) for number in shared])


def mean_loss(losses: Sequence[float]) -> Loss:
    """Mean and standard error of single losses. Raises ValueError without any."""
    n = len(losses)
    if n == 0:
        raise ValueError("no round, no loss")
    mean = math.fsum(losses) / n
    if n == 1:
        return Loss(mean, math.inf, 1, 1)
    variance = math.fsum((loss - mean) ** 2 for loss in losses) / (n - 1)
    return Loss(mean, math.sqrt(variance / n), n - 1, n)


def trimmed_loss(losses: Sequence[float]) -> Loss:
    """Mean without the highest and the lowest fifth, with the standard error that the trimmed t test has.

    For single losses of which a few say more about the machine than about the builds. Fewer than ten give `mean_loss`. Formula: Tukey and
    McLaughlin, Sankhya A 25 (1963); the error as in Yuen, Biometrika 61 (1974). Raises ValueError without any.
    """
    n = len(losses)
    if n < 10:
        return mean_loss(losses)
    cut = n // 5
    ordered = sorted(losses)
    kept = ordered[cut : n - cut]
    pulled_in = [*[kept[0]] * cut, *kept, *[kept[-1]] * cut]
    centre = math.fsum(pulled_in) / n
    squares = math.fsum((loss - centre) ** 2 for loss in pulled_in)
    h = len(kept)
    return Loss(math.fsum(kept) / h, math.sqrt(squares / (h * (h - 1))), h - 1, n)


def pooled_loss(cells: Iterable[Loss]) -> Loss | None:
    """The mean over cells, each counting the same, with the error that their own errors give it (Welch-Satterthwaite).

    Cells of a single round are left out; None when no cell is left.
    """
    known = [cell for cell in cells if not math.isinf(cell.error)]
    if not known:
        return None
    count = len(known)
    mean = math.fsum(cell.mean for cell in known) / count
    parts = [cell.error**2 / count**2 for cell in known]
    total = math.fsum(parts)
    if total == 0:
        return Loss(mean, 0.0, 1, sum(cell.n for cell in known))
    freedom = 1 / math.fsum(
        (part / total) ** 2 / cell.freedom for part, cell in zip(parts, known, strict=True)
    )
    return Loss(mean, math.sqrt(total), freedom, sum(cell.n for cell in known))


QUIET = 0.01
"""Blocks that disagree so much that chance would do it less often than this were measured on a machine that was not quiet."""


def agree(blocks: Sequence[Loss]) -> bool:
    """Whether blocks differ by no more than the noise of their own rounds explains; True for fewer than two.

    The F test of one-way analysis of variance with the noise of all blocks pooled: of a block of two rounds alone it is hardly known,
    and a test that takes it for known calls most quiet machines restless.
    """
    known = [block for block in blocks if not math.isinf(block.error)]
    if len(known) < 2:
        return True
    within = math.fsum(block.error**2 for block in known) / len(known)
    if within == 0:
        return len({block.mean for block in known}) == 1
    centre = math.fsum(block.mean for block in known) / len(known)
    between = math.fsum((block.mean - centre) ** 2 for block in known) / (len(known) - 1)
    freedom = math.fsum(block.freedom for block in known)
    return tails.f_sf(between / within, len(known) - 1, freedom) >= QUIET
