"""What the rule says about few tokens: false alarms, and power against a mild position fault, by simulation.

    python -m benchmarks.exactness.small_runs [--sessions 2000] [--seed 1]

Level `self` on a server that tells its own token only (shares, no gaps, the assumed floor), and level `full` (gaps,
a floor of the size of the run). The healthy rate is 0.6 to 1.5 times the floor's; the fault moves 5 or 7 % of all
tokens. Prints Markdown.
"""

from __future__ import annotations

import argparse
from collections import Counter
from dataclasses import replace

import numpy as np

from benchmarks.exactness.sessions import Captured, Shape, captured, gap_laws, healthy, prompt_rates, spoil
from pytest_ddtree.exactness.floor import NoiseFloor, assumed_floor, floor_of
from pytest_ddtree.exactness.power import PositionFault, power
from pytest_ddtree.exactness.rule import Rule, criteria
from pytest_ddtree.exactness.tally import Tally

SHAPES = tuple(
    Shape(prompts=count, length=length)
    for count, length in (
        *((4, 48), (12, 48), (12, 64), (24, 64), (24, 96), (48, 64)),
        *((64, 160), (320, 320), (2000, 512)),
    )
)
RATIOS = (0.6, 1.0, 1.5)
SPREADS = (0.55, 1.0)
"""Variance of a prompt's rate over its mean squared: the noisiest healthy capture, and twice that."""


def without_gaps(run: Tally) -> Tally:
    """What is left where a judge tells only its own token."""
    return replace(run, largest=np.minimum(run.largest, 1e-9), gap_sum=run.gap_sum * 0.0)


def faulty(run: Tally, fault: PositionFault, generator: np.random.Generator) -> Tally:
    """The run with a position fault in every answer, some prompts hit harder than others."""
    prompts = run.tokens.size
    rates = prompt_rates(generator, prompts, fault.prompt_variance)
    extra = np.minimum(generator.poisson(fault.share * run.tokens * rates), run.tokens)
    large = generator.binomial(extra, fault.large)
    gaps = np.asarray([1.0 + generator.exponential(fault.tail, n).max() if n else 0.0 for n in large])
    small = np.where(extra > large, 0.5, 0.0)
    return spoil(run, np.arange(prompts), extra.astype(np.int64), np.maximum(gaps, small))


def session(
    shape: Shape, ratio: float, spread: float, real: Captured, level: str, generator: np.random.Generator
) -> tuple[Tally, NoiseFloor]:
    """A healthy run and the floor that it is held against."""
    law = gap_laws(real)["captured"]
    rates = prompt_rates(generator, max(shape.prompts, 64), spread)
    if level == "self":
        floor = assumed_floor()
        run = healthy(generator, shape, rates[: shape.prompts], ratio * floor.share, law)
        return without_gaps(run), floor
    own = Shape(prompts=min(64, shape.prompts), length=min(160, shape.length))
    base = healthy(generator, own, rates[: own.prompts], real.share, law)
    return healthy(generator, shape, rates[: shape.prompts], ratio * real.share, law), floor_of(
        {"base": base}
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sessions", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    real, rule = captured(), Rule()
    print(
        "| level | prompts x tokens | healthy, alarms (worst of ratios and spreads) | power against 5 %, computed | seen | against 7 % |"
    )
    print("|---|---|---|---|---|---|")
    for level in ("self", "full"):
        for shape in SHAPES:
            sessions = max(100, arguments.sessions // (1 + shape.tokens // 50_000))
            generator = np.random.default_rng(arguments.seed)
            alarms: Counter[tuple[float, float]] = Counter()
            for spread in SPREADS:
                for ratio in RATIOS:
                    for _ in range(sessions):
                        run, floor = session(shape, ratio, spread, real, level, generator)
                        alarms[ratio, spread] += bool(criteria(run, floor, rule))
            seen: Counter[float] = Counter()
            computed = []
            tried = max(50, sessions // 10)
            for share in (0.05, 0.07):
                fault = PositionFault(share=share)
                for _ in range(tried):
                    run, floor = session(shape, 1.0, 0.55, real, level, generator)
                    spoilt = faulty(run, fault, generator)
                    spoilt = without_gaps(spoilt) if level == "self" else spoilt
                    seen[share] += bool(criteria(spoilt, floor, rule))
                    if share == 0.05 and len(computed) < 20:
                        computed.append(power(run, floor, rule, gaps=level == "full"))
            (worst, where) = max((count, key) for key, count in alarms.items())
            at = f" at ratio {where[0]}, spread {where[1]}" if worst else ""
            print(
                f"| {level} | {shape.prompts} x {shape.length} | {worst} of {sessions}{at} | {np.mean(computed):.0%} "
                f"| {seen[0.05] / tried:.0%} | {seen[0.07] / tried:.0%} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
