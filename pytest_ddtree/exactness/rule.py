"""The rule that tells rounding noise from corruption. Pure: judged answers and a noise floor in, a verdict
out.

Four ways to be corrupt, each needed: one token far beyond the floor (a wrong KV slot), too many tokens a
little beyond it (a mask that lets siblings be seen: 18 % against 0.7 %), one answer with improbably many (one
request in 300), and middling gaps that are single but come too often (a fault that touches few tokens of a
long run). Healthy kernels differ from one another, so shares are compared with a margin and clustered by
prompt: near-ties belong to prompts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import special

from pytest_ddtree import tails
from pytest_ddtree.exactness.floor import NoiseFloor
from pytest_ddtree.exactness.judged import JudgedAnswer, all_gaps, worst_tokens
from pytest_ddtree.exactness.tally import Floats, Ints, Tally, dispersion_of, tally
from pytest_ddtree.exactness.verdict import Criterion, Level, Verdict, VerdictKind

CRITERIA = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """Thresholds; the defaults are the options' defaults."""

    gap_factor: float = 4.0
    gap_min: float = 1.0
    """Nats; 1e-3 for servers that compute in float32, 8 for a model that routes between experts."""
    share_factor: float = 2.0
    share_margin: float = 0.005
    healthy_ratio: float = 1.5
    """Shares of healthy kernels differ up to this ratio; the test's null is "no more than that"."""
    alpha: float = 0.001
    """False alarms of this verdict, over its criteria."""
    tail_factors: tuple[float, ...] = (0.5, 1.0, 1.5)
    """Times `gap_min`: the fixed thresholds at which gaps are counted."""
    few_gaps: int = 50
    """A floor with fewer gaps does not show their tail."""
    min_tokens: int = 32
    """Fewer judged tokens, some of them not the argmax, say nothing: `unknown`."""
    least_power: float = 0.8
    """A config of which less is judged than shows a position fault with this probability is `unknown`, no tie."""
    blind_gap: float = 8.0
    """A gap limit above this many nats sees no wrong position any more ..."""
    blind_share: float = 0.15
    """... nor does a share limit above this; both together make the verdict `unknown`."""

    @property
    def part(self) -> float:
        """False alarms that one criterion may raise."""
        return self.alpha / CRITERIA

    def scale(self, floor: NoiseFloor) -> float:
        """The scale of healthy gaps, nats: the floor's, or an eighth of `gap_min` where the floor has few
        gaps to show one.

        An eighth of 1 nat is the spacing of bf16 logits between 16 and 32.
        """
        return max(floor.scale, self.gap_min / 8.0)


FLOAT32 = Rule(gap_min=1e-3)
"""The rule for servers that compute in float32."""

EXPERTS = Rule(gap_min=8.0)
"""The rule for a model that routes between experts in coarser arithmetic: a route that flips at a near-tie costs up to
4.9 nats (measured), once in thousands of tokens, so that a floor may well have none where the run has one."""


def least_gap(*, float32: bool, experts: bool) -> float:
    """`gap_min` for a server and its model, nats."""
    return FLOAT32.gap_min if float32 else EXPERTS.gap_min if experts else Rule().gap_min


def gap_limit(rule: Rule, floor: NoiseFloor, tokens: int) -> float:
    """The largest gap that is not corrupt by itself among `tokens` tokens, nats.

    A floor of few gaps does not show how light their tail is; there the limit is at least what an exponential
    tail exceeds with the probability that one criterion may have.

    The raise for more tokens than the floor has stands outside the factor: for an exponential tail of scale
    s, the chance that the largest of n healthy gaps exceeds 4 x (the largest of m) + s ln(n/m) is the same as
    at n = m, and a factor on the raise too would make a long run blind to gaps of 2 nats.
    """
    scale = rule.scale(floor)
    limit = max(rule.gap_factor * floor.largest, rule.gap_min)
    if floor.share_off < rule.few_gaps:
        healthy_off = max(1.0, rule.healthy_ratio * floor.share_bound() * tokens)
        return max(limit, scale * math.log(healthy_off / rule.part))
    return limit + floor.raised_by(tokens, scale)


def share_limit(rule: Rule, floor: NoiseFloor) -> float:
    """The share of non-argmax tokens above which the clustered test is asked."""
    bound = floor.share_bound()
    return max(rule.share_factor * bound, bound + rule.share_margin)


def share_p(run: Tally, floor: NoiseFloor, *, ratio: float) -> float:
    """One-sided p that the rate of non-argmax tokens is at most `ratio` times the floor's, clustered by
    prompt.

    Given the sum of two Poisson counts, the first is binomial with a known probability when the rates have a
    known ratio. Counts of near-ties are no Poisson counts: they come in clusters, and healthy prompts differ.
    So both are divided by their dispersion (Pearson's, a cluster being all answers to one prompt; see
    `spread_of`), and the binomial tail is continued to fractional
    counts by the incomplete beta function. Unlike a permutation of signs it has power from 2 prompts on;
    unlike a test of tokens it does not call a clump of near-ties a proof.
    """
    if run.tokens.size == 0 or floor.share_tokens == 0:
        return 1.0
    events, tokens = run.by_prompt()
    spread = spread_of(floor, dispersion_of(events, tokens), float(tokens.mean()), ratio=ratio)
    count, in_floor = float(events.sum()) / spread, floor.share_off / spread
    return ratio_p(count, int(tokens.sum()), in_floor, floor.share_tokens, ratio=ratio)


MOST_SPREAD = 1.5


def spread_of(floor: NoiseFloor, own: float, tokens: float, *, ratio: float) -> float:
    """The dispersion over prompts of `tokens` tokens each that counts are divided by: the run's own, within limits.

    At least what the floor does not exclude for so many tokens, at most `MOST_SPREAD` times that: a fault hits
    some prompts harder than others, and by its own spread, without a limit, it would excuse itself (7.3 % of 768
    tokens of a broken mask, against 1.6 % healthy, were no proof).
    """
    healthy = floor.dispersion_at(ratio * floor.share_bound() * tokens)
    return max(healthy, min(own, MOST_SPREAD * healthy))


def ratio_p(off: float, tokens: int, floor_off: float, floor_tokens: int, *, ratio: float) -> float:
    """P(at least `off`) for a Poisson count whose rate is `ratio` times that of `floor_off` in
    `floor_tokens`, given the sum."""
    if off <= 0.0:
        return 1.0
    probability = ratio * tokens / (ratio * tokens + floor_tokens)
    return float(special.betainc(off, floor_off + 1.0, probability))


def answer_p(off: Ints | int, tokens: Ints | int, *, rate: float, dispersion: float) -> Floats:
    """P(at least `off` of `tokens` are not the argmax) for one healthy answer, shapes as given.

    A negative binomial tail, Poisson if `dispersion` (variance over mean of the counts) is 1.
    """
    mean = np.maximum(rate * np.asarray(tokens, dtype=np.float64), 1e-300)
    below = np.asarray(off) - 1
    if dispersion <= 1.0 + 1e-9:
        return tails.poisson_sf(below, mean)
    return tails.negative_binomial_sf(below, mean / (dispersion - 1.0), 1.0 / dispersion)


def tail_p(answers_beyond: int, threshold: float, tokens: int, floor: NoiseFloor, rule: Rule) -> float:
    """P(at least so many answers have a gap above `threshold` nats) when `tokens` healthy tokens are judged.

    The healthy rate is the floor's rate of non-argmax tokens times an exponential tail; real tails are lighter (a gap
    needs an error of at least its size). Its scale is 1.25 times the floor's mean gap, or what the floor's largest gap
    asks for (`tail_scale`). An answer counts once, however many it has, and
    so does a token that many answers share (`Tally.answers_above`): a near-tie comes again whenever its prompt does.

    A floor that has such answers itself knows better than any law: where routes between experts flip, gaps are either
    of near-ties or of flips. There the two counts are compared as those of `share_p` are, both divided by the
    dispersion that the floor does not exclude, and the larger p counts.
    """
    if answers_beyond <= 0:
        return 1.0
    scale = 1.25 * max(rule.scale(floor), floor.tail_scale())
    rate = rule.healthy_ratio * floor.share_bound() * math.exp(-threshold / scale)
    p = float(tails.poisson_sf(answers_beyond - 1, rate * tokens))
    in_floor = floor.answers_above(threshold)
    if not in_floor:
        return p
    spread = floor.dispersion_bound()
    compared = ratio_p(
        answers_beyond / spread, tokens, in_floor / spread, floor.share_tokens, ratio=rule.healthy_ratio
    )
    return max(p, compared)


def criteria(run: Tally, floor: NoiseFloor, rule: Rule) -> dict[Criterion, Finding]:
    """The criteria by which a run is corrupt; empty for a healthy one."""
    found: dict[Criterion, Finding] = {}
    if run.tokens.size == 0:
        return found
    bound = share_limit(rule, floor)
    limit = gap_limit(rule, floor, run.all_tokens)
    if run.largest_of_all > limit:
        found["gap"] = Finding(limit=limit, value=run.largest_of_all)
    if run.share > bound:
        p = share_p(run, floor, ratio=rule.healthy_ratio)
        if p <= rule.part:
            found["share"] = Finding(limit=bound, value=run.share, p=p)
    improbable = _improbable(run, floor, rule, bound)
    if improbable.size:
        worst = int(improbable[np.argmax(run.off[improbable] / run.tokens[improbable])])
        found["answer"] = Finding(limit=bound, value=float(improbable.size), answer=worst)
    tail = _tail(run, floor, rule)
    if tail is not None:
        found["tail"] = tail
    return found


@dataclass(frozen=True, slots=True)
class Finding:
    """What a criterion found: the limit, the value held against it, p and answer where it has one."""

    limit: float
    value: float
    p: float = 0.0
    answer: int = 0
    """Index of the worst answer in the tally."""


def judge(
    answers: Sequence[JudgedAnswer], floor: NoiseFloor, rule: Rule, *, config: str, level: Level
) -> Verdict:
    """The verdict on judged answers.

    With nothing judged, or a floor under which nothing could be seen, it is `unknown`.
    """
    judged = [answer for answer in answers if answer.tokens]
    run = tally(judged)
    limit = gap_limit(rule, floor, run.all_tokens)
    bound = share_limit(rule, floor)
    found = criteria(run, floor, rule)
    identical = sum(1 for answer in answers if answer.identical)
    kind: VerdictKind = "tie"
    reasons = tuple(_words(name, finding, judged, run, floor) for name, finding in found.items())
    if not judged:
        kind, reasons = "unknown", ("not one token could be judged",)
    elif found:
        kind = "corrupt"
    elif identical == len(answers):
        kind = "exact"
    elif limit > rule.blind_gap and bound > rule.blind_share:
        kind = "unknown"
        blind = f"gaps up to {limit:.3g} nats and {bound:.1%} of non-argmax tokens would count as healthy"
        reasons = (f"the noise floor is too high to see a fault: {blind}",)
    elif run.all_off and run.all_tokens < rule.min_tokens:
        kind = "unknown"
        few = f"only {run.all_tokens} tokens were judged, {rule.min_tokens} are needed"
        reasons = (f"{few}: use more prompts or longer answers",)
    return Verdict(
        kind=kind,
        level=level,
        config=config,
        prompts=len(answers),
        identical=identical,
        tokens=run.all_tokens,
        off=run.all_off,
        largest=run.largest_of_all,
        gap_limit=limit,
        floor_largest=floor.largest,
        floor_share=floor.share,
        floor_tokens=floor.tokens,
        p_share=share_p(run, floor, ratio=rule.healthy_ratio),
        criteria=tuple(found),
        reasons=reasons,
        worst=worst_tokens(judged),
    )


def _words(
    name: Criterion, finding: Finding, judged: Sequence[JudgedAnswer], run: Tally, floor: NoiseFloor
) -> str:
    """A finding in words for people."""
    if name == "gap":
        count = int(np.count_nonzero(all_gaps(judged) > finding.limit))
        beyond = f"{count} of {run.all_tokens} tokens beyond a gap of {finding.limit:.3g} nats"
        return f"{beyond} (largest {finding.value:.3g})"
    if name == "share":
        return (
            f"{finding.value:.2%} of {run.all_tokens} tokens are not the argmax where the floor has "
            f"{floor.share:.2%} (limit {finding.limit:.2%}, p {finding.p:.2g} by prompt)"
        )
    if name == "answer":
        worst = judged[finding.answer]
        return (
            f"{finding.value:.0f} of {len(judged)} answers have improbably many non-argmax tokens "
            f"({worst.tag}: {worst.off} of {worst.tokens})"
        )
    return (
        f"{finding.value:.0f} answers have a gap above {finding.limit:.3g} nats, more often than the floor's "
        f"tail allows (p {finding.p:.2g})"
    )


def _improbable(run: Tally, floor: NoiseFloor, rule: Rule, bound: float) -> Ints:
    """Indices of answers with more non-argmax tokens than the unluckiest of so many healthy answers has."""
    rate = rule.healthy_ratio * floor.share_bound()
    candidates = np.flatnonzero(run.off > bound * run.tokens)
    tokens = run.tokens[candidates]
    spread = floor.dispersion_at(rate * float(tokens.max())) if tokens.size else 1.0
    p = answer_p(run.events[candidates], tokens, rate=rate, dispersion=spread)
    return candidates[p * run.tokens.size <= rule.part]


def _tail(run: Tally, floor: NoiseFloor, rule: Rule) -> Finding | None:
    """What the tail criterion finds at the fixed threshold where it is strongest, if it rejects."""
    best: Finding | None = None
    for factor in rule.tail_factors:
        threshold = factor * rule.gap_min
        beyond = run.answers_above(threshold)
        # A single token is what the gap criterion judges, with a limit that rests less on the shape of a
        # tail.
        if beyond < 2:
            continue
        p = tail_p(beyond, threshold, run.all_tokens, floor, rule) * len(rule.tail_factors)
        if p <= rule.part and (best is None or p < best.p):
            best = Finding(limit=threshold, value=beyond, p=p)
    return best
