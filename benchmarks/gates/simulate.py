"""Power and false alarms of the gates across sessions, by simulation of whole ones through the functions that judge real ones.

    python benchmarks/gates/simulate.py [--sessions 1000] [--seed 0] [--round-noise 0.02] [--start-noise 0.0025]

A session has 12 cells, 4 of them headlines, all five metrics. Every round has an effect of its prompts (10 %, the same on both sides,
so that pairing removes it) and noise of its own; every start of a server moves all its cells together and each cell a little. There is
one start a side, and the tolerance follows from the stored starts. Undecided headlines get more rounds, at the looks that the design
declares, up to the cap. Builds that take turns in one session have rules of their own: `simulate_ab.py`.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass

import numpy as np

from pytest_ddtree.results.gates import Design, Gate, gate_cell, gate_pooled
from pytest_ddtree.results.metrics import METRICS, TOK_S, Metric, Values
from pytest_ddtree.results.tolerance import Start, Tolerance, across_sessions, start_spread

CELLS = 12
HEADLINES = 4
NOISE_OF = {"tok_s": 1.0, "ttft_p90_ms": 3.0, "ms_per_token_p90": 1.5, "accept_length": 0.1, "speedup": 1.4}
"""Noise of a round relative to that of tok/s."""


@dataclass(frozen=True, slots=True)
class World:
    """Noise, as shares."""

    rounds: float
    starts: float
    prompts: float = 0.10

    def start(self, generator: np.random.Generator) -> np.ndarray:
        """What one start of a server does to the logarithm of each cell's speed, (cells, 1): to all alike, and to each a little."""
        return generator.normal(0.0, self.starts) + generator.normal(0.0, self.starts / 2, (CELLS, 1))


@dataclass(frozen=True, slots=True)
class Found:
    """What one session said."""

    cells: frozenset[int]
    pooled: bool
    rounds: float
    """Mean rounds of a cell."""

    @property
    def alarm(self) -> bool:
        return self.pooled or bool(self.cells)


class Draw:
    """The rounds of one side of one session, on one start; the first n rounds are the same whatever n is. `lost`: of each cell, shares."""

    def __init__(
        self,
        generator: np.random.Generator,
        world: World,
        lost: tuple[float, ...],
        prompts: np.ndarray,
        most: int,
    ) -> None:
        shift = world.start(generator)
        loss = -np.log1p(-np.asarray(lost))[:, None]
        self._logs = {}
        for name, scale in NOISE_OF.items():
            noise = generator.normal(0.0, world.rounds * scale, (CELLS, most))
            moved = 0.0 if name == "accept_length" else 1.0
            change = moved * (shift - loss)
            sign = 1.0 if METRICS[name].higher_is_better else -1.0
            self._logs[name] = prompts + noise + sign * change

    def values(self, metric: Metric, cell: int, rounds: int) -> Values:
        return dict(enumerate(np.exp(self._logs[metric.name][cell, :rounds]).tolist()))


def session(
    generator: np.random.Generator,
    world: World,
    lost: tuple[float, ...],
    tolerances: dict[str, Tolerance],
    pooled: Tolerance,
) -> Found:
    """One session from its first look to its decision."""
    design = Design(tests=HEADLINES * len(METRICS))
    most = design.looks[-1]
    prompts = generator.normal(0.0, world.prompts, (CELLS, most))
    base, candidate = (Draw(generator, world, side, prompts, most) for side in (losses(), lost))
    blamed: set[int] = set()
    taken = dict.fromkeys(range(CELLS), design.looks[0])
    look: int | None = design.looks[0]
    together = None
    while look is not None:
        more: set[int] = set()
        for cell in range(HEADLINES):
            outcomes = {
                gate.outcome
                for metric in METRICS.values()
                if (gate := _gate(metric, cell, taken[cell], base, candidate, tolerances, design)) is not None
            }
            if "regressed" in outcomes:
                blamed.add(cell)
            elif "undecided" in outcomes:
                more.add(cell)
        pairs = [(base.values(TOK_S, cell, n), candidate.values(TOK_S, cell, n)) for cell, n in taken.items()]
        together = gate_pooled(TOK_S, pairs, pooled, design)
        # A test that is over is not taken up again.
        look = design.next_look(look) if more else None
        if look is not None:
            taken.update(dict.fromkeys(more, look))
    rounds = sum(taken.values()) / CELLS
    return Found(frozenset(blamed), together is not None and together.outcome == "regressed", rounds)


def _gate(
    metric: Metric,
    cell: int,
    rounds: int,
    base: Draw,
    now: Draw,
    tolerances: dict[str, Tolerance],
    design: Design,
) -> Gate | None:
    return gate_cell(
        str(cell),
        metric,
        base.values(metric, cell, rounds),
        now.values(metric, cell, rounds),
        tolerances[metric.name],
        design,
    )


def losses(**cells: float) -> tuple[float, ...]:
    """The loss of each cell: `every` for all, `first` for the first headline."""
    found = [cells.get("every", 0.0)] * CELLS
    if "first" in cells:
        found[0] = cells["first"]
    return tuple(found)


def across(generator: np.random.Generator, world: World, lost: tuple[float, ...], stored: int) -> Found:
    """Against figures of another session, with the tolerance that `stored` starts of one build give."""
    own = np.hypot(world.starts, world.starts / 2)
    tolerances = {}
    for name, metric in METRICS.items():
        noise = np.hypot(0.0 if name == "accept_length" else own, world.rounds * NOISE_OF[name] / 2)
        known = [Start("build", {0: float(np.exp(generator.normal(0.0, noise)))}) for _ in range(stored)]
        tolerances[name] = across_sessions(metric.tolerance, start_spread(known))
    pooled = Tolerance(tolerances["tok_s"].share, "as a cell's")
    return session(generator, world, lost, tolerances, pooled)


def share(flags: list[bool]) -> str:
    """A rate, or how many of how many where it is 0."""
    n, hits = len(flags), sum(flags)
    return f"{hits / n:7.2%}" if hits else f"0 of {n}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sessions", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--round-noise", type=float, default=0.02)
    parser.add_argument("--start-noise", type=float, default=0.0025)
    options = parser.parse_args()
    world = World(options.round_noise, options.start_noise)
    generator = np.random.default_rng(options.seed)
    print(
        f"noise of a round {world.rounds:.1%}, of a start {world.starts:.2%}; {options.sessions} sessions a line"
    )
    print(
        f"{'comparison':<30} {'true loss':<28} {'alarm':>10} {'pooled':>10} {'headline 1':>11} {'others':>10} {'rounds':>7}"
    )
    rows = [
        ("across sessions, 3 starts", "none", losses(), 3),
        ("across sessions, 3 starts", "15 % in all cells", losses(every=0.15), 3),
        ("across sessions, 8 starts", "none", losses(), 8),
        ("across sessions, 8 starts", "3 % in all cells", losses(every=0.03), 8),
        ("across sessions, 8 starts", "6 % in all cells", losses(every=0.06), 8),
        ("across sessions, 8 starts", "10 % in one headline cell", losses(first=0.10), 8),
    ]
    for name, what, lost, stored in rows:
        found = [across(generator, world, lost, stored) for _ in range(options.sessions)]
        print(
            f"{name:<30} {what:<28} {share([one.alarm for one in found]):>10} {share([one.pooled for one in found]):>10} "
            f"{share([0 in one.cells for one in found]):>11} {share([bool(one.cells - {0}) for one in found]):>10} "
            f"{np.mean([one.rounds for one in found]):7.1f}"
        )


if __name__ == "__main__":
    main()
