"""Simulated sessions: tallies of healthy and of spoilt runs, calibrated on real captures."""

from __future__ import annotations

import gzip
import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pytest_ddtree.exactness.tally import Tally

CAPTURE = Path(__file__).parents[2] / "tests" / "data" / "teacher-forced-gaps.json.gz"
HEALTHY = ("base@1", "base@8", "base@32", "chain@1", "tree8@1")
FAULT = "bug_causal@1"

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
GapLaw = Callable[[np.random.Generator, int], Floats]


@dataclass(frozen=True, slots=True)
class Captured:
    """What the captures say: gaps of healthy runs, gaps of the faulty one, and the spread over prompts."""

    healthy_gaps: Floats
    fault_gaps: Floats
    """Shape (prompts, tokens)."""
    share: float
    prompt_variance: float
    """Variance of a prompt's own rate over its mean rate squared."""


def captured() -> Captured:
    """Read the captures. The spread comes from the noisiest healthy run, the tree."""
    with gzip.open(CAPTURE, "rt") as file:
        runs = json.load(file)["runs"]
    healthy = np.concatenate([np.ravel(runs[run]) for run in HEALTHY])
    spread = []
    for run in HEALTHY:
        counts = (np.asarray(runs[run]) > 0).sum(axis=1)
        spread.append(max(0.0, (counts.var(ddof=1) / counts.mean() - 1.0) / counts.mean()))
    return Captured(
        healthy_gaps=healthy[healthy > 0],
        fault_gaps=np.asarray(runs[FAULT]),
        share=float(np.mean(np.asarray(runs["base@32"]) > 0)),
        prompt_variance=max(spread),
    )


def gap_laws(real: Captured) -> dict[str, GapLaw]:
    """Laws of a healthy gap given that there is one.

    `captured`: drawn from the captures and smeared by the bf16 spacing of 0.0625. `gaussian`: a near-tie is
    flipped by a Gaussian error, so density ~ P(error > gap), mean as captured. `exponential`: the same mean,
    a far heavier tail than any measured. `flips`: one gap in ten is no near-tie but a flipped route between
    experts, exponential with a mean of 0.83 nats, as fitted to 1,697 gaps of a mixture of experts (`moe_floors` of
    tests/data/sglang-0.5.16/seventh-contact.json, docs/gpu.md).
    """
    mean = float(real.healthy_gaps.mean())
    sigma = mean * 4.0 / math.sqrt(2.0 * math.pi)

    def smeared(generator: np.random.Generator, count: int) -> Floats:
        return generator.choice(real.healthy_gaps, count) + generator.uniform(-0.03, 0.03, count)

    def gaussian(generator: np.random.Generator, count: int) -> Floats:
        # An error drawn with weight ~ its size (Rayleigh), then a gap anywhere below it, has this density.
        return sigma * generator.rayleigh(1.0, count) * generator.uniform(0.0, 1.0, count)

    def exponential(generator: np.random.Generator, count: int) -> Floats:
        return generator.exponential(mean, count)

    def flips(generator: np.random.Generator, count: int) -> Floats:
        flipped = generator.random(count) < FLIPPED
        return np.where(flipped, generator.exponential(FLIP_NATS, count), gaussian(generator, count))

    return {"captured": smeared, "gaussian": gaussian, "exponential": exponential, "flips": flips}


FLIPPED, FLIP_NATS = 0.1, 0.83
"""The share of gaps that are flipped routes, and their mean."""


def float32_law(generator: np.random.Generator, count: int) -> Floats:
    """Ties of float32 logits: gaps under 1e-4 nats."""
    return generator.uniform(1e-7, 1e-4, count)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """How many tokens a run has and how they come."""

    prompts: int
    length: int

    @property
    def tokens(self) -> int:
        return self.prompts * self.length


def prompt_rates(generator: np.random.Generator, prompts: int, variance: float) -> Floats:
    """Each prompt's own rate over the mean rate: gamma with mean 1, shape (prompts,)."""
    return generator.gamma(1.0 / variance, variance, prompts) if variance > 0 else np.ones(prompts)


def healthy(generator: np.random.Generator, shape: Shape, rates: Floats, share: float, law: GapLaw) -> Tally:
    """One answer to each prompt; near-ties are Poisson around the prompt's own rate, one in five in a pair."""
    singles = generator.poisson(share * shape.length * rates / 1.2)
    counts = np.minimum(singles + generator.binomial(singles, 0.2), shape.length).astype(np.int64)
    gaps = law(generator, int(counts.sum()))
    owner = np.repeat(np.arange(shape.prompts), counts)
    largest = np.zeros(shape.prompts)
    np.maximum.at(largest, owner, gaps)
    return Tally(
        prompt=np.arange(shape.prompts),
        tokens=np.full(shape.prompts, shape.length),
        off=counts,
        events=counts,
        largest=largest,
        peak=np.arange(shape.prompts),
        gap_sum=np.bincount(owner, weights=gaps, minlength=shape.prompts),
    )


def spoil(run: Tally, which: Ints, off: Ints, largest: Floats) -> Tally:
    """The run with so many more non-argmax tokens, and gaps so large, in some of its answers."""
    new_off, new_largest = run.off.copy(), run.largest.copy()
    new_off[which] = np.minimum(new_off[which] + off, run.tokens[which])
    new_largest[which] = np.maximum(new_largest[which], largest)
    return Tally(
        prompt=run.prompt,
        tokens=run.tokens,
        off=new_off,
        events=new_off,
        largest=new_largest,
        peak=run.peak,
        gap_sum=run.gap_sum,
    )
