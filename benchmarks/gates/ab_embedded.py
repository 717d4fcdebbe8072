"""Two builds of the embedded server take turns, A B B A, one of them with a planted slow-down: is the right one blamed?

    python benchmarks/gates/ab_embedded.py [--slower 10] [--planted patched|base|none] [--passes 2] [--rounds 4]

Prints the comparison and exits with 0 when what was planted is what was found. Passes are added and findings confirmed by the rules
of a real A/B, and what is found is judged at the levels of one.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from pytest_ddtree.client.client import AsyncClient
from pytest_ddtree.client.loop import LoopThread
from pytest_ddtree.grid import BASELINE, CellKey, Config
from pytest_ddtree.measuring import measure_rounds
from pytest_ddtree.model_files import model_facts
from pytest_ddtree.options import make_settings
from pytest_ddtree.report.comparison import lines
from pytest_ddtree.results.change import Comparison
from pytest_ddtree.results.model import Results, Round
from pytest_ddtree.results.order import Block, blocks
from pytest_ddtree.results.runs import cells_of
from pytest_ddtree.results.taking_turns import AbDesign, default_headline, in_turns
from pytest_ddtree.servers.pool import ServerPool
from pytest_ddtree.servers.settings import ServerSettings
from pytest_ddtree.workload.cell import CellSpec
from pytest_ddtree.workload.natural import natural_for
from pytest_ddtree.workload.prompts import PromptMaker
from pytest_ddtree.workload.rounds import SamplingRule

CELLS = tuple(CellKey(context, width) for context in (60, 256) for width in (1, 4))


@dataclass(frozen=True, slots=True)
class Length:
    """What is measured in a stay of a build: rounds of every cell, requests a stream and tokens of an answer in each."""

    rounds: int = 4
    turnovers: int = 2
    output: int = 48
    lag: float = 0.1
    """Of a request, by which the client may be late: more than with a real server, for it shares the machine with this one."""


CONFIG = Config("tree", 8, 4)
BUILDS = ("base", "patched")
ALPHA = 0.001


@dataclass(frozen=True, slots=True)
class Planted:
    """A slow-down of one build: by how much a pass takes longer, and in which cells (None: in all)."""

    build: str
    percent: int
    cell: CellKey | None = None

    def arguments(self, build: str) -> tuple[str, ...]:
        """What the server of a build gets."""
        return ("--plant", f"slower:{self.percent}") if build == self.build else ()


class Session:
    """Servers of two builds, of which one is up at a time. A slow-down of one cell needs servers of its own for that cell."""

    def __init__(
        self, folder: Path, planted: Planted | None, length: Length, prefix: tuple[str, ...]
    ) -> None:
        self.length = length
        self.prefix = prefix
        if prefix:
            come_first(os.getpid())
        settings = make_settings({})
        facts = model_facts(settings)
        assert facts.target is not None
        self.eos = facts.eos
        self.maker = PromptMaker(facts.target, workload="code", seed=0, thinking=True)
        self.loop = LoopThread()
        self.rounds: list[Round] = []
        self.chosen = self._choose(folder / "baseline")
        alone = [] if planted is None or planted.cell is None else [planted.cell]
        self.pools: dict[str, list[tuple[ServerPool, Sequence[CellKey]]]] = {}
        for build in BUILDS:
            slow = () if planted is None else planted.arguments(build)
            others = [key for key in CELLS if key not in alone]
            parts = [(slow, alone), ((), others)] if alone else [(slow, others)]
            self.pools[build] = [
                (self._pool(folder / build / str(number), arguments), cells)
                for number, (arguments, cells) in enumerate(parts)
            ]

    def _pool(self, folder: Path, arguments: tuple[str, ...]) -> ServerPool:
        return ServerPool(
            ServerSettings(
                kind="reference",
                run_dir=folder,
                server_args=arguments,
                max_concurrency=8,
                launch_prefix=self.prefix,
            )
        )

    def _choose(self, folder: Path) -> dict[int, tuple[int, ...]]:
        """Prompts whose answers on the baseline are natural, by context, for all cells of it: as a session chooses them."""
        pool = self._pool(folder, ())
        try:
            server = pool.get(BASELINE, "prompts")
            client = AsyncClient(server.url)
            widest = max(key.concurrency for key in CELLS)
            try:
                return {
                    context: self.loop.run(
                        natural_for(
                            client,
                            self.maker,
                            self._spec(CellKey(context, widest)),
                            deadline_s=None,
                            extra={},
                        )
                    )
                    for context in sorted({key.context for key in CELLS})
                }
            finally:
                self.loop.run(client.aclose())
        finally:
            pool.close()

    def _spec(self, key: CellKey) -> CellSpec:
        return CellSpec(
            context=key.context,
            concurrency=key.concurrency,
            output=self.length.output,
            turnovers=self.length.turnovers,
        )

    def stay(self, block: Block) -> None:
        """One stay of a build on the machine: its rounds of every cell, on servers of its own."""
        for pool, cells in self.pools[block.build]:
            server = pool.get(CONFIG, "ab")
            if self.prefix:
                come_first(server.pid)
            client = AsyncClient(server.url)
            try:
                for key in cells:
                    self.loop.run(self._cell(client, block, key))
            finally:
                self.loop.run(client.aclose())
                pool.stop(CONFIG)

    async def _cell(self, client: AsyncClient, block: Block, key: CellKey) -> None:
        rule = SamplingRule(min_rounds=block.rounds, max_rounds=block.rounds)
        # The same pass of the other build has the same prompts in the same order, and the next pass begins with the next one.
        chosen = self.chosen[key.context]
        first = block.number % len(chosen)
        measured = await measure_rounds(
            client,
            self.maker,
            key,
            self._spec(key),
            rule,
            config=CONFIG.id,
            eos=frozenset(),
            indices=chosen[first:] + chosen[:first],
            client_lag=self.length.lag,
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
        for parts in self.pools.values():
            for pool, _ in parts:
                pool.close()
        self.loop.close()


def design(passes: int, rounds: int) -> AbDesign:
    """What a session with these cells declares when nothing is said about headlines and error rates."""
    return AbDesign(
        rounds=rounds,
        passes=passes,
        alpha=ALPHA,
        configs=1,
        headline=default_headline({CONFIG.id: CELLS}),
    )


def run_session(
    planted: Planted | None,
    *,
    passes: int,
    length: Length,
    prefix: tuple[str, ...] = (),
    say: Callable[[str], None] = lambda text: None,
) -> tuple[Comparison, int]:
    """One session, and of how many passes: as many as the rules of a real one ask for. `prefix` stands before the servers' command."""
    with tempfile.TemporaryDirectory() as folder:
        session = Session(Path(folder), planted, length, prefix)
        declared = design(passes, length.rounds)
        done = 0

        def compared(wanted: int) -> tuple[Comparison, ...]:
            nonlocal done
            for block in blocks(BUILDS, passes=wanted, rounds=length.rounds)[len(BUILDS) * done :]:
                began = time.monotonic()
                session.stay(block)
                say(f"pass {block.number + 1}, {block.build}: {time.monotonic() - began:.0f} s")
            done = wanted
            base, other = (session.results(build) for build in BUILDS)
            return (declared.compare(base, other, config=CONFIG.id, names=BUILDS, passes=(wanted, wanted)),)

        try:
            (comparison,), stopped = in_turns(declared, compared, say=say)
        finally:
            session.close()
        if stopped:
            say(stopped)
        return comparison, done


def add_length(parser: argparse.ArgumentParser) -> None:
    """The options that say how much is measured in a stay, and where the servers run."""
    usual = Length()
    parser.add_argument("--rounds", type=int, default=usual.rounds, help="of a cell in one stay")
    parser.add_argument("--turnovers", type=int, default=usual.turnovers, help="requests a stream in a round")
    parser.add_argument("--output", type=int, default=usual.output, help="tokens of an answer")
    parser.add_argument(
        "--lag", type=float, default=usual.lag, help="share of a request by which a client may be late"
    )
    parser.add_argument(
        "--pin",
        action="store_true",
        help="a core for the servers, the others for the rest, and both before other processes",
    )


def pinned() -> tuple[str, ...]:
    """Keep this process off the last core, which the servers have for themselves by the prefix that is returned.

    A server that wanders between the cores leaves its weights in the other one's cache: at concurrency 1 that cost a fifth.
    """
    *others, last = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, others or [last])
    return ("taskset", "-c", str(last))


def come_first(pid: int | None) -> None:
    """Let the kernel run the session of a process before those of others; as root on Linux, elsewhere it does nothing.

    A core is shared among sessions before nice says anything (sched(7), autogroup), and every server has a session of its own. Realtime
    priority is no remedy: 50 ms of each second are kept for others, which is longer than a round of one request.
    """
    with suppress(OSError):
        Path(f"/proc/{pid}/autogroup").write_text("-20")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--slower", type=int, default=10, metavar="PERCENT", help="how much longer a pass takes"
    )
    parser.add_argument("--planted", choices=[*BUILDS, "none"], default="patched")
    parser.add_argument("--passes", type=int, default=2)
    add_length(parser)
    options = parser.parse_args()
    comparison, _ = run_session(
        None if options.planted == "none" else Planted(options.planted, options.slower),
        passes=options.passes,
        length=Length(options.rounds, options.turnovers, options.output, options.lag),
        prefix=pinned() if options.pin else (),
        say=lambda text: print(text, flush=True),
    )
    print("\n".join(lines(comparison)))
    found = {"worse": "patched", "better": "base"}.get(comparison.changes[0].outcome, "none")
    print(f"planted in {options.planted}, found in {found}")
    return int(found != options.planted)


if __name__ == "__main__":
    raise SystemExit(main())
