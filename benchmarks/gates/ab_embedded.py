"""Two builds of the embedded server take turns, A B B A, one of them with a planted slow-down: is the right one blamed?

    python benchmarks/gates/ab_embedded.py [--slower 10] [--planted patched|base|none] [--passes 2] [--rounds 4]

Prints the comparison and exits with 0 when what was planted is what was found. Passes are added,
two at a time and up to `--most-passes`, while the loss of all cells together is undecided.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from pytest_ddtree.client.client import AsyncClient
from pytest_ddtree.client.loop import LoopThread
from pytest_ddtree.grid import CellKey, Config
from pytest_ddtree.measuring import measure_rounds
from pytest_ddtree.model_files import model_facts
from pytest_ddtree.options import make_settings
from pytest_ddtree.report.comparison import lines
from pytest_ddtree.results.compare import Comparison, compare
from pytest_ddtree.results.model import Results, Round
from pytest_ddtree.results.order import Block, blocks
from pytest_ddtree.results.runs import cells_of
from pytest_ddtree.servers.pool import ServerPool
from pytest_ddtree.servers.settings import ServerSettings
from pytest_ddtree.workload.cell import CellSpec
from pytest_ddtree.workload.prompts import PromptMaker
from pytest_ddtree.workload.rounds import SamplingRule

CELLS = tuple(CellKey(context, width) for context in (60, 256) for width in (1, 2, 4))
CONFIG = Config("tree", 8, 4)
BUILDS = ("base", "patched")


class Session:
    """Two pools, one a build, of which one server is up at a time."""

    def __init__(self, folder: Path, planted: Mapping[str, tuple[str, ...]]) -> None:
        settings = make_settings({})
        facts = model_facts(settings)
        assert facts.target is not None
        self.eos = facts.eos
        self.maker = PromptMaker(facts.target, workload="code", seed=0, thinking=True)
        self.loop = LoopThread()
        self.rounds: list[Round] = []
        self.pools = {
            build: ServerPool(
                ServerSettings(
                    kind="reference", run_dir=folder / build, server_args=planted[build], max_concurrency=8
                )
            )
            for build in BUILDS
        }

    def stay(self, block: Block) -> None:
        """One stay of a build on the machine: its rounds of every cell, on a server of its own."""
        server = self.pools[block.build].get(CONFIG, "ab")
        client = AsyncClient(server.url)
        try:
            for key in CELLS:
                self.loop.run(self._cell(client, block, key))
        finally:
            self.loop.run(client.aclose())
            self.pools[block.build].stop(CONFIG)

    async def _cell(self, client: AsyncClient, block: Block, key: CellKey) -> None:
        spec = CellSpec(context=key.context, concurrency=key.concurrency, output=32, turnovers=1)
        rule = SamplingRule(min_rounds=block.rounds, max_rounds=block.rounds)
        # A seed a pass: the same pass of the other build has the same prompts, and the next pass has others.
        indices = range(block.number * 500, block.number * 500 + 500)
        measured = await measure_rounds(
            client, self.maker, key, spec, rule, config=CONFIG.id, eos=frozenset(), indices=indices
        )
        self.rounds += [
            replace(one, number=block.first_round + one.number, build=block.build, at=time.time())
            for one in measured
        ]

    def results(self, build: str) -> Results:
        """What a build has measured so far."""
        return Results(cells=cells_of(one for one in self.rounds if one.build == build))

    def close(self) -> None:
        """Stop what is left."""
        for pool in self.pools.values():
            pool.close()
        self.loop.close()


def compared(session: Session, passes: int, rounds: int) -> Comparison:
    """What the passes so far say."""
    return compare(
        *(session.results(build) for build in BUILDS),
        names=BUILDS,
        same_session=True,
        starts=(passes, passes),
        block_rounds=rounds,
    )


def decided(comparison: Comparison) -> bool:
    """Whether the loss of all cells together is found, or excluded with 95 %."""
    together = comparison.changes[0]
    return together.outcome != "no change seen" or together.loss.at_most(
        0.05
    ) < 0.01 > -together.loss.at_least(0.05)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--slower", type=int, default=10, metavar="PERCENT", help="how much longer a pass takes"
    )
    parser.add_argument("--planted", choices=[*BUILDS, "none"], default="patched")
    parser.add_argument("--passes", type=int, default=2)
    parser.add_argument("--most-passes", type=int, default=6)
    parser.add_argument("--rounds", type=int, default=4)
    options = parser.parse_args()
    fault = ("--plant", f"slower:{options.slower}")
    planted = {build: fault if build == options.planted else () for build in BUILDS}
    with tempfile.TemporaryDirectory() as folder:
        session = Session(Path(folder), planted)
        try:
            passes = 0
            while passes < options.most_passes:
                for block in blocks(BUILDS, passes=passes + 2, rounds=options.rounds)[2 * passes :]:
                    began = time.monotonic()
                    session.stay(block)
                    print(
                        f"pass {block.number + 1}, {block.build}: {time.monotonic() - began:.0f} s",
                        flush=True,
                    )
                passes += 2
                comparison = compared(session, passes, options.rounds)
                if passes >= options.passes and decided(comparison):
                    break
        finally:
            session.close()
    print("\n".join(lines(comparison)))
    found = {"worse": "patched", "better": "base", "no change seen": "none"}[comparison.changes[0].outcome]
    print(f"planted in {options.planted}, found in {found}")
    return int(found != options.planted)


if __name__ == "__main__":
    raise SystemExit(main())
