"""Whether sampled answers are samples from the baseline: pure statistics on judged answers.

At temperature 1 without truncation a token is a draw from the judge's distribution given the prefix that was
really emitted, so at every position three things are known exactly: the chance of each of the judge's best
tokens, the chance of all others together (one bin), and hence the mean and the variance of -log p. Nothing
here conditions on what was accepted: a token's place in its verify step may be used, accepted or bonus may
not, because acceptance depends on the token.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from pytest_ddtree import tails
from pytest_ddtree.client.records import Record, TokenScore
from pytest_ddtree.exactness.judged import JudgedAnswer
from pytest_ddtree.exactness.steps import place_in_step

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

MIN_TOKENS = 400
_MIN_PAIRS = 100
_TINY = 1e-12


@dataclass(frozen=True, slots=True, kw_only=True)
class Samples:
    """Judged sampled tokens, arrays of shape (tokens,)."""

    answer: Ints
    index: Ints
    """Position in the answer, from 0."""
    place: Ints
    """Place in the verify step, from 0; -1 where steps are not known."""
    excess: Floats
    """-log p of the token's bin minus its exact expectation, nats."""
    variance: Floats
    """The exact variance of that, nats squared."""
    tail: Floats
    """1 for a token outside the judge's best, else 0, minus the chance of that."""
    tail_variance: Floats
    by_rank: Floats
    """Randomised probability integral transform, bins from the most to the least probable: uniform."""
    by_id: Floats
    """The same with the known bins by token id and the others last: what an inverse transform by id draws."""
    edges: Floats
    """Borders of those bins, shape (tokens, most bins + 1), padded with 1."""
    bin: Ints
    """The token's bin among them."""

    @property
    def tokens(self) -> int:
        return int(self.excess.size)


def make_samples(
    answers: Sequence[JudgedAnswer], records: Mapping[str, Record] | None = None, *, seed: int = 0
) -> Samples:
    """What the tests look at. `records` (by tag) gives the places in verify steps where they are proved.

    Randomised over the bins with `seed`, so the same answers give the same numbers.
    """
    generator = np.random.default_rng(seed)
    rows: list[tuple[float, ...]] = []
    edges: list[Floats] = []
    for number, answer in enumerate(answers):
        record = None if records is None else records.get(answer.tag)
        for index, score in enumerate(answer.scores):
            place = None if record is None else place_in_step(record, index)
            where = -1 if place is None else place.index
            values, borders = _position(score, float(generator.random()))
            rows.append((number, index, where, *values))
            edges.append(borders)
    table = np.asarray(rows, dtype=np.float64).reshape(-1, 10)
    padded = np.ones((len(edges), max((borders.size for borders in edges), default=2)))
    for row, borders in zip(padded, edges, strict=True):
        row[: borders.size] = borders
    return Samples(
        answer=table[:, 0].astype(np.int64),
        index=table[:, 1].astype(np.int64),
        place=table[:, 2].astype(np.int64),
        excess=table[:, 3],
        variance=table[:, 4],
        tail=table[:, 5],
        tail_variance=table[:, 6],
        by_rank=table[:, 7],
        by_id=table[:, 8],
        edges=padded,
        bin=table[:, 9].astype(np.int64),
    )


def _position(score: TokenScore, within: float) -> tuple[tuple[float, ...], Floats]:
    """The values of one token in `Samples` from `excess` on, and the edges of its bins by id."""
    ids = [token_id for token_id, _ in score.top]
    known = np.exp(np.asarray([logprob for _, logprob in score.top]))
    p = np.append(known, max(_TINY, 1.0 - float(known.sum())))
    p /= p.sum()
    surprise = -np.log(np.maximum(p, _TINY))
    mean = float((p * surprise).sum())
    bin_ = ids.index(score.token_id) if score.token_id in ids else len(ids)
    by_id = np.append(np.argsort(np.asarray(ids)), len(ids))
    rank_of = int(np.flatnonzero(by_id == bin_)[0])
    borders = np.concatenate([[0.0], np.cumsum(p[by_id])])
    values = (
        float(surprise[bin_]) - mean,
        float((p * surprise**2).sum()) - mean**2,
        float(bin_ == len(ids)) - float(p[-1]),
        float(p[-1] * (1.0 - p[-1])),
        float(p[:bin_].sum() + within * p[bin_]),
        float(borders[rank_of] + within * p[bin_]),
        float(rank_of),
    )
    return values, borders


@dataclass(frozen=True, slots=True)
class SamplingTest:
    """One test: what was seen in the run and in the baseline's own samples, and p that they are the same."""

    name: str
    run: float
    baseline: float
    p: float
    tokens: int


SamplingKind = Literal["consistent", "corrupt", "unknown"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingVerdict:
    """`consistent`: samples from the baseline as far as these tests see. `unknown`: too few tokens."""

    kind: SamplingKind
    config: str
    tokens: int
    tests: tuple[SamplingTest, ...]
    skipped: tuple[str, ...]
    """Tests that could not be made, each with the reason."""
    reasons: tuple[str, ...]

    @property
    def passed(self) -> bool:
        return self.kind == "consistent"


def judge_samples(run: Samples, baseline: Samples, *, config: str, alpha: float = 0.001) -> SamplingVerdict:
    """Compare sampled answers with the baseline's own samples, both judged by the baseline in the same way.

    The exact expectations hold only as far as the judge's prefill equals the arithmetic that sampled, so the
    null is what the baseline's own samples show. `alpha` is the false alarm rate of all tests together.
    """
    if min(run.tokens, baseline.tokens) < MIN_TOKENS:
        few = f"{run.tokens} sampled tokens and {baseline.tokens} of the baseline, {MIN_TOKENS} of each are needed"
        return SamplingVerdict(
            kind="unknown", config=config, tokens=run.tokens, tests=(), skipped=(), reasons=(few,)
        )
    tests: list[SamplingTest] = [_surprise(run, baseline), _tail(run, baseline)]
    tests += [_uniform(run, baseline, name) for name in ("rank", "id")]
    skipped: list[str] = []
    depth = _depths(run, baseline)
    if depth is None:
        skipped.append(
            "surprise by depth: the steps of the run's chunks are not proved, or no place of a step has "
            f"{_MIN_PAIRS} tokens"
        )
    else:
        tests.append(depth)
    for name, pairs in _PAIRS.items():
        for make in (_correlation, _shared_coin):
            test = make(name, pairs, run, baseline)
            if test is None:
                skipped.append(f"{name}: fewer than {_MIN_PAIRS} pairs of tokens")
            else:
                tests.append(test)
    part = alpha / len(tests)
    reasons = tuple(
        f"{test.name}: {test.run:.4g} in {test.tokens} tokens where the baseline's own samples have "
        f"{test.baseline:.4g} (p {test.p:.2g})"
        for test in tests
        if test.p <= part
    )
    return SamplingVerdict(
        kind="corrupt" if reasons else "consistent",
        config=config,
        tokens=run.tokens,
        tests=tuple(tests),
        skipped=tuple(skipped),
        reasons=reasons,
    )


def _surprise(run: Samples, baseline: Samples) -> SamplingTest:
    """Mean excess of -log p: negative when the temperature is ignored, positive when drafts go uncorrected."""
    return _means(
        "mean surprise above its expectation, nats",
        (run.excess, run.variance),
        (baseline.excess, baseline.variance),
    )


def _tail(run: Samples, baseline: Samples) -> SamplingTest:
    """Share of tokens outside the judge's best above its expectation: where a wrong draft shows most."""
    return _means(
        "share of tokens outside the judge's best, above its expectation",
        (run.tail, run.tail_variance),
        (baseline.tail, baseline.tail_variance),
    )


def _means(name: str, run: tuple[Floats, Floats], baseline: tuple[Floats, Floats]) -> SamplingTest:
    """Two means of values with known variances, two-sided."""
    means = float(run[0].mean()), float(baseline[0].mean())
    error = np.sqrt(_error(run[1]) ** 2 + _error(baseline[1]) ** 2)
    p = 2.0 * tails.normal_sf(abs(means[0] - means[1]) / error)
    return SamplingTest(name, *means, p, int(run[0].size))


def _error(variance: Floats) -> float:
    """Standard error of a mean: given the prefixes, tokens are independent with known variances."""
    return float(np.sqrt(max(float(variance.sum()), _TINY))) / variance.size


def _uniform(run: Samples, baseline: Samples, order: str) -> SamplingTest:
    """Two-sample Kolmogorov-Smirnov test of the integral transforms; the figures are distances to uniform."""
    # Imported late: it takes half a second, and sessions that sample nothing need none of it.
    from scipy import stats

    mine, theirs = _transform(run, order), _transform(baseline, order)
    far = [float(stats.kstest(values, "uniform").statistic) for values in (mine, theirs)]
    p = float(stats.ks_2samp(mine, theirs, method="asymp").pvalue)
    return SamplingTest(f"integral transform by {order}, distance to uniform", far[0], far[1], p, run.tokens)


def _depths(run: Samples, baseline: Samples) -> SamplingTest | None:
    """Mean excess at each place of the verify step against the baseline's mean, as one chi-square."""
    centre, error = float(baseline.excess.mean()), _error(baseline.variance)
    differences, errors = [], []
    for place in np.unique(run.place[run.place >= 0]):
        at = run.place == place
        if int(at.sum()) >= _MIN_PAIRS:
            differences.append(float(run.excess[at].mean()) - centre)
            errors.append(_error(run.variance[at]))
    if not differences:
        return None
    p = tails.chi2_sf(squared_distance(differences, errors, common=error), len(differences))
    largest = max(map(abs, differences))
    return SamplingTest(
        "largest mean surprise of a depth, nats from the baseline's", largest, 0.0, p, run.tokens
    )


def squared_distance(differences: Sequence[float], errors: Sequence[float], *, common: float) -> float:
    """Chi-square of differences with standard errors of their own and a `common` one, that of what all are compared with.

    Mahalanobis' distance, the inverse of the covariance by Sherman and Morrison's formula. Adding up each difference
    over its variance instead takes the common error for as many independent ones.
    """
    weights = 1.0 / np.asarray(errors) ** 2
    values = np.asarray(differences)
    shared = float((weights * values).sum()) ** 2 / (1.0 / common**2 + float(weights.sum()))
    return float((weights * values**2).sum()) - shared


def _transform(samples: Samples, order: str) -> Floats:
    return samples.by_rank if order == "rank" else samples.by_id


Pairs = Callable[[Samples], tuple[Ints, Ints]]


def _next_token(samples: Samples) -> tuple[Ints, Ints]:
    """Each token with the next of its answer; with the next of its verify step where steps are known."""
    first = np.arange(max(samples.tokens - 1, 0))
    together = samples.answer[first] == samples.answer[first + 1]
    if (samples.place >= 0).any():
        together &= (samples.place[first] >= 0) & (samples.place[first + 1] == samples.place[first] + 1)
    return first[together], first[together] + 1


def _same_index(samples: Samples) -> tuple[Ints, Ints]:
    """Each token with the token at the same position of the next answer: batch neighbours run side by side."""
    at = {(int(a), int(i)): n for n, (a, i) in enumerate(zip(samples.answer, samples.index, strict=True))}
    pairs = [(n, at[(a + 1, i)]) for (a, i), n in at.items() if (a + 1, i) in at]
    table = np.asarray(pairs, dtype=np.int64).reshape(-1, 2)
    return table[:, 0], table[:, 1]


_PAIRS: dict[str, Pairs] = {
    "the next token": _next_token,
    "the neighbour's token": _same_index,
}


def _correlation(name: str, pairs: Pairs, run: Samples, baseline: Samples) -> SamplingTest | None:
    """Correlation of integral transforms that must be independent, against the baseline's, by Fisher's z."""
    seen: list[tuple[float, int]] = []
    for samples in (run, baseline):
        left, right = pairs(samples)
        if left.size < _MIN_PAIRS:
            return None
        values = samples.by_rank
        seen.append((float(np.corrcoef(values[left], values[right])[0, 1]), int(left.size)))
    (mine, count), (theirs, their_count) = seen
    limit = 1.0 - 1e-9
    z = np.arctanh(np.clip(mine, -limit, limit)) - np.arctanh(np.clip(theirs, -limit, limit))
    p = 2.0 * tails.normal_sf(abs(z) / np.sqrt(1.0 / (count - 3) + 1.0 / (their_count - 3)))
    return SamplingTest(f"correlation with {name}", mine, theirs, p, count)


def _shared_coin(name: str, pairs: Pairs, run: Samples, baseline: Samples) -> SamplingTest | None:
    """How often two tokens could come from one random number, above the exact chance of that.

    An inverse transform over token ids that draws twice with one number picks bins that hold that number, so
    they overlap always. Far stronger than a correlation where one bin holds most of the probability.
    """
    seen = []
    for samples in (run, baseline):
        left, right = pairs(samples)
        if left.size < _MIN_PAIRS:
            return None
        rows = np.arange(left.size)
        low = samples.edges[left, samples.bin[left]][:, None]
        high = samples.edges[left, samples.bin[left] + 1][:, None]
        edges = samples.edges[right]
        overlaps = (edges[:, :-1] < high) & (edges[:, 1:] > low)
        chance = (np.diff(edges, axis=1) * overlaps).sum(axis=1)
        overlapped = overlaps[rows, samples.bin[right]].astype(np.float64)
        seen.append((overlapped - chance, np.maximum(chance * (1.0 - chance), 0.0)))
    return _means(f"one random number for it and {name}, above its chance", seen[0], seen[1])


@dataclass(frozen=True, slots=True)
class Outside:
    """A token that `top_k` should have made impossible."""

    tag: str
    position: int
    token_id: int
    below: float
    """Nats below the least probable token that was allowed."""


def outside_top_k(answers: Sequence[JudgedAnswer], top_k: int, *, tolerance: float) -> tuple[Outside, ...]:
    """Tokens that are less probable than the judge's `top_k`-th by more than `tolerance` nats, worst first.

    `tolerance` is the gap limit of the noise floor: rounding swaps neighbours at the border of the top k.
    Valid at any temperature, which changes no order. Raises ValueError when fewer than `top_k` were returned.
    """
    found = []
    for answer in answers:
        for score in answer.scores:
            if len(score.top) < top_k:
                raise ValueError(
                    f"top_k {top_k} cannot be judged by the {len(score.top)} most probable tokens returned"
                )
            below = score.top[top_k - 1][1] - score.logprob
            if below > tolerance:
                position = score.position - answer.prompt_tokens
                found.append(Outside(answer.tag, position, score.token_id, below))
    return tuple(sorted(found, key=lambda token: -token.below))
