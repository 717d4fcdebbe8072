"""How often the exactness rule raises a false alarm, and what it sees: a simulation of the whole rule.

    python -m benchmarks.exactness.false_alarms [--sessions 10000] [--seed 1] [--law flips --gap-min 8]

A session is a noise floor (64 prompts x 160 tokens, or the embedded server's 24 x 64) and one judged run. The
run's healthy rate of non-argmax tokens is 0.6 to 1.5 times the floor's true rate. Prints Markdown tables.
"""

from __future__ import annotations

import argparse
import time
from collections import Counter
from dataclasses import dataclass

import numpy as np
from scipy import stats

from benchmarks.exactness.sessions import (
    Captured,
    GapLaw,
    Shape,
    captured,
    float32_law,
    gap_laws,
    healthy,
    prompt_rates,
    spoil,
)
from pytest_ddtree.exactness.floor import NoiseFloor, floor_of
from pytest_ddtree.exactness.rule import FLOAT32, Rule, criteria
from pytest_ddtree.exactness.tally import Tally

GPU_FLOOR = Shape(prompts=64, length=160)
SIZES = {
    "1.5k": Shape(prompts=24, length=64),
    "10k": Shape(prompts=64, length=160),
    "100k": Shape(prompts=320, length=320),
    "1M": Shape(prompts=2000, length=512),
}
RATIOS = (0.6, 1.0, 1.5)


@dataclass(frozen=True, slots=True)
class Case:
    """One row: a size, a healthy ratio, a law of gaps."""

    size: str
    ratio: float
    law_name: str
    law: GapLaw
    share: float
    variance: float
    rule: Rule

    def session(self, generator: np.random.Generator) -> tuple[Tally, NoiseFloor]:
        """A healthy run and its floor; the run starts with the floor's prompts and goes on with others."""
        shape = SIZES[self.size]
        floor_shape = shape if shape.tokens < GPU_FLOOR.tokens else GPU_FLOOR
        rates = prompt_rates(generator, max(shape.prompts, floor_shape.prompts), self.variance)
        base = healthy(generator, floor_shape, rates[: floor_shape.prompts], self.share, self.law)
        run = healthy(generator, shape, rates[: shape.prompts], self.ratio * self.share, self.law)
        return run, floor_of({"base": base})


def false_alarms(case: Case, sessions: int, seed: int) -> Counter[str]:
    """How many healthy sessions raise an alarm, by criterion and under `any`."""
    generator = np.random.default_rng(seed)
    alarms: Counter[str] = Counter()
    for _ in range(sessions):
        run, floor = case.session(generator)
        found = criteria(run, floor, case.rule)
        alarms.update(found.keys())
        alarms["any"] += bool(found)
    return alarms


def planted(name: str, run: Tally, real: Captured, generator: np.random.Generator) -> Tally:
    """The run with one of the faults that power is stated for."""
    answers = run.tokens.size
    length = int(run.tokens[0])
    if name == "18 % of all tokens":
        which = np.arange(answers)
        rows = generator.integers(0, len(real.fault_gaps), answers)
        share = (real.fault_gaps[rows] > 0).mean(axis=1)
        return spoil(run, which, generator.binomial(length, share), real.fault_gaps[rows].max(axis=1))
    if name == "the same, gaps below 0.375 nats":
        spoilt = planted("18 % of all tokens", run, real, generator)
        return spoil(run, np.arange(answers), spoilt.off - run.off, np.full(answers, 0.375))
    if name.startswith("a wrong slot in 1 request of 300"):
        which = generator.choice(answers, max(1, answers // 300), replace=False)
        # From a random position of the answer on, as when one late KV slot is wrong.
        rest = (length * generator.uniform(0.0, 1.0, which.size)).astype(np.int64)
        rows = generator.integers(0, len(real.fault_gaps), which.size)
        columns = [
            generator.choice(real.fault_gaps[row], count) for row, count in zip(rows, rest, strict=True)
        ]
        largest = np.asarray([gaps.max() if gaps.size else 0.0 for gaps in columns])
        off = np.asarray([np.count_nonzero(gaps) for gaps in columns])
        if name.endswith("gaps below 0.375 nats"):
            largest = np.minimum(largest, 0.375)
        return spoil(run, which, off, largest)
    which = generator.choice(answers, min(answers, max(1, run.all_tokens // 10_000)), replace=False)
    return spoil(run, which, np.ones(which.size, dtype=np.int64), np.full(which.size, 2.0))


FAULTS = (
    "18 % of all tokens",
    "the same, gaps below 0.375 nats",
    "a wrong slot in 1 request of 300",
    "a wrong slot in 1 request of 300, gaps below 0.375 nats",
    "2 nats once in 10,000 tokens",
)


def power(case: Case, fault: str, real: Captured, sessions: int, seed: int) -> Counter[str]:
    """How many spoilt sessions are found, by criterion and under `any`."""
    generator = np.random.default_rng(seed)
    found_by: Counter[str] = Counter()
    for _ in range(sessions):
        run, floor = case.session(generator)
        found = criteria(planted(fault, run, real, generator), floor, case.rule)
        found_by.update(found.keys())
        found_by["any"] += bool(found)
    return found_by


def _rate(count: int, sessions: int) -> str:
    """A rate with its upper 95 % bound."""
    upper = stats.beta.ppf(0.95, count + 1, max(sessions - count, 1))
    return f"{count / sessions:.3%} (<= {upper:.3%})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sessions", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--law", help="simulate this law of gaps alone")
    parser.add_argument("--gap-min", type=float, default=1.0, help="of the rule, nats (1)")
    arguments = parser.parse_args()
    real = captured()
    laws = gap_laws(real)
    # Flips are another kind of model, which has a rule of its own.
    asked = ("captured", "gaussian", "exponential") if arguments.law is None else (arguments.law,)
    laws = {name: laws[name] for name in asked}
    rule = Rule(gap_min=arguments.gap_min)
    started = time.monotonic()
    print(
        f"share {real.share:.2%}, variance of a prompt's rate {real.prompt_variance:.2f}, "
        f"mean gap {real.healthy_gaps.mean():.3f} nats, {len(real.healthy_gaps)} gaps\n"
    )
    print("| tokens | law of gaps | ratio | alarms, any | gap | share | answer | tail |")
    print("|---|---|---|---|---|---|---|---|")
    cases = [
        Case(size, ratio, name, law, real.share, real.prompt_variance, rule)
        for size in SIZES
        for name, law in laws.items()
        for ratio in RATIOS
    ]
    if arguments.law is None:
        cases += [Case(size, 1.5, "float32", float32_law, 1e-5, 0.0, FLOAT32) for size in SIZES]
    for case in cases:
        sessions = arguments.sessions // (4 if case.size == "1M" else 1)
        alarms = false_alarms(case, sessions, arguments.seed)
        by = " | ".join(str(alarms[name]) for name in ("gap", "share", "answer", "tail"))
        any_alarm = _rate(alarms["any"], sessions)
        print(
            f"| {case.size} | {case.law_name} | {case.ratio} | {any_alarm} of {sessions} | {by} |", flush=True
        )
    print("\n| tokens | fault | found | gap | share | answer | tail |")
    print("|---|---|---|---|---|---|---|")
    for size in SIZES:
        case = Case(size, 1.0, asked[0], laws[asked[0]], real.share, real.prompt_variance, rule)
        sessions = max(20, arguments.sessions // (100 if size == "1M" else 20))
        for fault in FAULTS:
            found = power(case, fault, real, sessions, arguments.seed)
            by = " | ".join(f"{found[name] / sessions:.1%}" for name in ("gap", "share", "answer", "tail"))
            print(f"| {size} | {fault} | {found['any'] / sessions:.1%} of {sessions} | {by} |", flush=True)
    print(f"\n{time.monotonic() - started:.0f} s")


if __name__ == "__main__":
    main()
