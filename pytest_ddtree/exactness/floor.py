"""The noise floor: what healthy non-speculative arithmetic does against itself."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

from pytest_ddtree import tails
from pytest_ddtree.exactness.judged import JudgedAnswer
from pytest_ddtree.exactness.tally import Tally, dispersion_of, tally

_EULER = 0.5772156649


@dataclass(frozen=True, slots=True, kw_only=True)
class NoiseFloor:
    """Baseline answers judged by the baseline, under one or more conditions (concurrency).

    Different batch sizes run different kernels, and the noisiest may be the plain single row (facts: vLLM in
    bf16), so the largest share of any condition counts. Answers of two conditions to one prompt are much
    alike, so conditions are never added up as if they were independent.
    """

    conditions: tuple[str, ...]
    tokens: int
    """Judged tokens, over all conditions."""
    largest: float
    """Largest gap seen, nats."""
    share: float
    """Share of tokens that are not the argmax, in the condition where it is largest."""
    share_off: int
    """Tokens that are not the argmax in that condition ..."""
    share_tokens: int
    """... of so many."""
    scale: float
    """Mean of the positive gaps, nats: the scale of an exponential tail; 0 where no gap was seen."""
    off: int
    """Tokens that are not the argmax, over all conditions."""
    answers: int
    """Answers in the condition with the largest share."""
    peaks: tuple[float, ...]
    """The largest gap of each answer that has one, nats, largest first; of several conditions the larger one at each rank."""
    dispersion: float
    """Variance over mean of the counts per answer, at least 1, the largest of any condition."""

    def raised_by(self, tokens: int, scale: float) -> float:
        """How far the largest of `tokens` gaps exceeds the floor's largest, nats, for a tail of `scale`.

        A maximum grows with n. For gaps with an exponential tail of scale s the largest of m is about s ln m; so the floor's own
        largest is raised by s ln(tokens / floor tokens) when more tokens are judged than the floor has.
        """
        have = max(self.share_tokens, 1)
        return scale * math.log(tokens / have) if tokens > have else 0.0

    def tail_scale(self) -> float:
        """Scale of the exponential tail whose largest of so many gaps is, on average, the floor's largest, nats; 0 without gaps.

        The largest of m has the mean s (ln m + Euler's constant), up to s / 2m.
        """
        return self.largest / (math.log(self.off) + _EULER) if self.off else 0.0

    def answers_above(self, threshold: float) -> int:
        """Answers with a gap above so many nats, in the condition that has most of them."""
        return sum(1 for peak in self.peaks if peak > threshold)

    def share_bound(self) -> float:
        """Share to compare with; zero observed in n tokens means at most 3/n (95 % Poisson bound)."""
        if self.share_tokens == 0:
            return 1.0
        return max(self.share, 3.0 / self.share_tokens if self.share_off == 0 else 0.0)

    def dispersion_bound(self) -> float:
        """The dispersion that the floor does not exclude.

        Its upper 95 % bound, as a variance with answers - 1 degrees of freedom; at least 1.5.
        """
        freedom = self.answers - 1
        if freedom < 1:
            return 4.0
        return max(1.5, self.dispersion * min(4.0, freedom / tails.chi2_quantile(0.05, freedom)))

    def dispersion_at(self, mean: float) -> float:
        """The dispersion to expect among answers with so many non-argmax tokens on average.

        Prompts differ in their rates, and that part of the variance grows with the square of the mean: twice
        as long answers have twice the excess dispersion.
        """
        here = self.share_bound() * self.share_tokens / max(self.answers, 1)
        return 1.0 + (self.dispersion_bound() - 1.0) * max(1.0, mean / here)

    def as_json(self) -> dict[str, Any]:
        """Plain values for stored records."""
        return {
            "conditions": list(self.conditions),
            "tokens": self.tokens,
            "largest_nats": self.largest,
            "share": self.share,
            "share_off": self.share_off,
            "share_tokens": self.share_tokens,
            "scale_nats": self.scale,
            "off": self.off,
            "answers": self.answers,
            "peaks_nats": list(self.peaks),
            "dispersion": self.dispersion,
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> NoiseFloor:
        """The floor that `as_json` wrote; KeyError or TypeError when it did not."""
        return cls(
            conditions=tuple(value["conditions"]),
            tokens=int(value["tokens"]),
            largest=float(value["largest_nats"]),
            share=float(value["share"]),
            share_off=int(value["share_off"]),
            share_tokens=int(value["share_tokens"]),
            scale=float(value["scale_nats"]),
            off=int(value["off"]),
            answers=int(value["answers"]),
            peaks=tuple(map(float, value["peaks_nats"])),
            dispersion=float(value["dispersion"]),
        )


def make_floor(judged: Mapping[str, Sequence[JudgedAnswer]]) -> NoiseFloor:
    """The floor from baseline answers judged by the baseline: condition -> answers.

    Raises:
        ValueError: not one token was judged.
    """
    return floor_of({condition: tally(answers) for condition, answers in judged.items()})


def floor_of(tallies: Mapping[str, Tally]) -> NoiseFloor:
    """The floor from tallies: condition -> tally. Raises ValueError when not one token was judged."""
    judged = [found for found in tallies.values() if found.tokens.size]
    if not judged:
        raise ValueError("a noise floor needs judged tokens, and there is none")
    # Among conditions without any, the longest says most.
    noisiest = max(judged, key=lambda found: (found.share, found.all_tokens))
    off = sum(found.all_off for found in judged)
    return NoiseFloor(
        conditions=tuple(tallies),
        tokens=sum(found.all_tokens for found in judged),
        largest=max(found.largest_of_all for found in judged),
        share=noisiest.share,
        share_off=noisiest.all_off,
        share_tokens=noisiest.all_tokens,
        scale=sum(float(found.gap_sum.sum()) for found in judged) / off if off else 0.0,
        off=off,
        answers=int(noisiest.tokens.size),
        peaks=tuple(map(max, zip_longest(*map(_peaks, judged), fillvalue=0.0))),
        dispersion=max(dispersion_of(found.events, found.tokens) for found in judged),
    )


def _peaks(found: Tally) -> list[float]:
    return sorted((float(gap) for gap in found.largest if gap > 0.0), reverse=True)


def assumed_floor(*, float32: bool = False) -> NoiseFloor:
    """A floor for a server without a baseline to measure one on (level `self`).

    bf16: what healthy trees and chains showed at this level on a real GPU server with a 7-million-parameter
    model, which is a worst case (1.6 % of 1,536 tokens; at level full 0.9 %, largest gap 0.375 nats), taken as if
    it had been seen in 10,240 tokens: the size decides how sharply a run is compared with it. float32: nothing
    seen in as many tokens.
    """
    return NoiseFloor(
        conditions=("assumed",),
        tokens=10_240,
        largest=0.0 if float32 else 0.375,
        share=0.0 if float32 else 167 / 10_240,
        share_off=0 if float32 else 167,
        share_tokens=10_240,
        scale=0.0 if float32 else 0.155,
        off=0 if float32 else 167,
        answers=64,
        peaks=(),
        dispersion=1.0 if float32 else 2.6,
    )
