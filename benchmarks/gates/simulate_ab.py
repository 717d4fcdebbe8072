"""Power and false alarms of an A/B of two builds, by simulation of whole sessions through the rules that end and judge real ones.

    python benchmarks/gates/simulate_ab.py [--sessions 1000] [--passes 2] [--rounds 4] [--bursts 0.05] ...

A session has 12 cells, 4 of them headlines, and a stay of a build measures `--rounds` rounds of each. Every round has an effect of its
prompts (10 %, the same on both builds, so that pairing removes it) and noise of its own. Every stay is on a server started anew, which
moves all its cells together by `--start-noise` and each cell by half of that. `--bursts` is the share of stays that something else on
the machine slows down by 10 to 50 %, all cells alike. `AbDesign.compare` judges and `in_turns` says when there
are further passes: what the first ones show is confirmed, stays that disagree count as one observation each, and so on.

`alarm`: any change was called worse or better. `blamed`: the slow build was called worse, by all cells together or by cells.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass, field

import numpy as np
from simulate import CELLS, HEADLINES, NOISE_OF, World, losses, share

from pytest_ddtree.grid import CellKey
from pytest_ddtree.results.change import Comparison
from pytest_ddtree.results.model import CellFigures, Results, Round
from pytest_ddtree.results.taking_turns import AbDesign, in_turns

CONFIG = "b8-k4-wnone"
BUILDS = ("base", "patched")
KEYS = tuple(CellKey(1024, 1 + number) for number in range(CELLS))
TOKENS = 100_000
"""Of a round: so many that whole verify steps are no noise of the accept length."""


@dataclass(slots=True)
class Build:
    """What a build has measured so far. `loss`: of each cell, as shares."""

    loss: np.ndarray
    rounds: list[list[Round]] = field(default_factory=lambda: [[] for _ in KEYS])

    def stay(
        self, generator: np.random.Generator, world: World, prompts: np.ndarray, burst: float = 0.0
    ) -> None:
        """As many rounds of each cell as `prompts` (cells, rounds) has effects, all of them slower by the share `burst`."""
        shift = np.log1p(-burst) + world.start(generator)
        faster = shift + np.log1p(-self.loss)[:, None]
        noise = {
            name: generator.normal(0.0, world.rounds * NOISE_OF[name], prompts.shape) for name in NOISE_OF
        }
        tok_s = 500 * np.exp(prompts + faster + noise["tok_s"])
        ttft = 0.05 * np.exp(prompts - faster + noise["ttft_p90_ms"])
        per_token = 0.002 * np.exp(prompts - faster + noise["ms_per_token_p90"])
        accept = 3 * np.exp(prompts + noise["accept_length"])
        for cell, key in enumerate(KEYS):
            for place in range(prompts.shape[1]):
                self.rounds[cell].append(
                    Round(
                        config=CONFIG,
                        key=key,
                        number=len(self.rounds[cell]),
                        requests=1,
                        tokens=TOKENS,
                        wall_s=TOKENS / float(tok_s[cell, place]),
                        ttft_s=(float(ttft[cell, place]),),
                        time_per_token_s=(float(per_token[cell, place]),),
                        latency_s=(1.0,),
                        verify_steps=round(TOKENS / float(accept[cell, place])),
                        cached_tokens=0,
                        decode_tok_s=None,
                    )
                )

    @property
    def results(self) -> Results:
        cells = (
            CellFigures(config=CONFIG, key=rounds[0].key, rounds=tuple(rounds)) for rounds in self.rounds
        )
        return Results(cells={(CONFIG, one.key): one for one in cells})


def session(
    generator: np.random.Generator,
    world: World,
    lost: tuple[float, ...],
    *,
    passes: int,
    rounds: int,
    bursts: float = 0.0,
) -> tuple[Comparison, int]:
    """One session, and how many passes it took."""
    design = AbDesign(
        rounds=rounds,
        passes=passes,
        alpha=0.001,
        configs=1,
        headline=tuple((CONFIG, key) for key in KEYS[:HEADLINES]),
    )
    base, patched = Build(np.zeros(CELLS)), Build(np.asarray(lost))
    done = 0

    def compared(wanted: int) -> tuple[Comparison, ...]:
        nonlocal done
        for _ in range(done, wanted):
            prompts = generator.normal(0.0, world.prompts, (CELLS, rounds))
            for build in (base, patched):
                burst = generator.uniform(0.1, 0.5) if generator.random() < bursts else 0.0
                build.stay(generator, world, prompts, burst)
        done = wanted
        return (
            design.compare(
                base.results, patched.results, config=CONFIG, names=BUILDS, passes=(wanted, wanted)
            ),
        )

    (comparison,), _ = in_turns(design, compared)
    return comparison, done


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sessions", type=int, default=1000, help="of each loss")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--passes", type=int, default=2, help="as asked for; up to four times as many are made"
    )
    parser.add_argument("--rounds", type=int, default=4, help="of a cell in one stay")
    parser.add_argument("--round-noise", type=float, default=0.02)
    parser.add_argument("--start-noise", type=float, default=0.0025)
    parser.add_argument("--bursts", type=float, default=0.0, help="share of stays that other work slows down")
    options = parser.parse_args()
    world = World(options.round_noise, options.start_noise)
    generator = np.random.default_rng(options.seed)
    print(
        f"noise of a round {world.rounds:.1%}, of a start {world.starts:.2%}, bursts in {options.bursts:.0%} of the stays; "
        f"{options.passes} passes asked for, {options.rounds} rounds a stay; {options.sessions} sessions a line"
    )
    print(
        f"{'true loss':<28} {'alarm':>10} {'blamed':>10} {'together':>10} {'headline 1':>11} {'others':>10} {'restless':>10} {'passes':>7}"
    )
    rows = [
        ("none", losses()),
        ("1 % in all cells", losses(every=0.01)),
        ("3 % in all cells", losses(every=0.03)),
        ("10 % in one headline cell", losses(first=0.10)),
    ]
    for what, lost in rows:
        found = [
            session(
                generator,
                world,
                lost,
                passes=options.passes,
                rounds=options.rounds,
                bursts=options.bursts,
            )
            for _ in range(options.sessions)
        ]
        named = [{(change.key, change.outcome) for change in one.beyond_noise} for one, _ in found]
        cells = [{key for key, _ in changes if key is not None} for changes in named]
        columns = [
            share([bool(changes) for changes in named]),
            share([any(outcome == "worse" for _, outcome in changes) for changes in named]),
            share([(None, "worse") in changes for changes in named]),
            share([KEYS[0] in keys for keys in cells]),
            share([bool(keys - {KEYS[0]}) for keys in cells]),
            share([one.unrest is not None for one, _ in found]),
        ]
        print(
            f"{what:<28} {columns[0]:>10} {columns[1]:>10} {columns[2]:>10} {columns[3]:>11} {columns[4]:>10} {columns[5]:>10} "
            f"{np.mean([passes for _, passes in found]):7.1f}"
        )


if __name__ == "__main__":
    main()
