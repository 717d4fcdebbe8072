"""Builds of the engine in one session: they take turns, answer the same prompts and are judged by the base's baseline."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime
from itertools import groupby
from typing import Any

from pytest_ddtree import __version__
from pytest_ddtree.ab_builds import Builds
from pytest_ddtree.ab_cells import ComparedCells
from pytest_ddtree.ab_faults import not_as_asked
from pytest_ddtree.ab_judging import verify_build
from pytest_ddtree.ab_outcome import AbOutcome
from pytest_ddtree.budget import FLAG, Budget, duration
from pytest_ddtree.build_run import BuildRun
from pytest_ddtree.errors import Infrastructure, NotKept
from pytest_ddtree.estimate import Timing
from pytest_ddtree.exactness.verdict import Verdict
from pytest_ddtree.grid import BASELINE, CellKey, Config
from pytest_ddtree.measuring import NO_STEPS, AcceptLengthWrong
from pytest_ddtree.options import Settings, settings_json
from pytest_ddtree.report.findings import Report, unfinished
from pytest_ddtree.results.builds import BuildSpec
from pytest_ddtree.results.change import Comparison
from pytest_ddtree.results.model import Failing
from pytest_ddtree.results.order import Block, blocks, turns
from pytest_ddtree.results.runs import FILE, StoredRun, rebuild
from pytest_ddtree.results.secrets import mask_values
from pytest_ddtree.results.selectors import headline_cells
from pytest_ddtree.results.store import Store, Stored
from pytest_ddtree.results.taking_turns import AbDesign, in_turns, rounds_of_stay, uneven_caches
from pytest_ddtree.workload.endings import COMPARED


class Ab:
    """The comparison of builds of one session; each config once. `close` stops every server and removes what was made."""

    def __init__(
        self,
        settings: Settings,
        specs: Sequence[BuildSpec],
        configs: tuple[Config, ...],
        cells: Sequence[CellKey],
        *,
        passes: int,
        progress: Callable[[str], None],
        budget: Budget | None = None,
    ) -> None:
        """`budget`: passes beyond those asked for begin only where it leaves time for them. Raises SelectorError."""
        self.started = datetime.now(UTC)
        self.folder = settings.results / f"{self.started:%Y%m%dT%H%M%SZ}-{os.getpid()}-ab"
        self.outcomes: dict[Config, AbOutcome] = {}
        self._unkept: list[Failing] = []
        """Tests that did not pass and that the disk did not take."""
        self._rounds = rounds_of_stay(settings.rounds, passes)
        self._design = AbDesign(
            rounds=self._rounds,
            passes=passes,
            alpha=settings.alpha,
            configs=len(configs),
            headline=headline_cells(settings.headline, [BASELINE.id, *(one.id for one in configs)], cells),
            at_once=settings.ab_at_once,
        )
        self._budget = budget or Budget()
        self._longest_stay_s = 0.0
        self._said_uneven = False
        self._warned: list[str] = []
        self._settings = replace(
            settings, rounds=self._rounds, min_rounds=min(self._rounds, settings.min_rounds)
        )
        self._passes = passes
        self._cells = ComparedCells(cells, self._warn)
        self._progress = progress
        self._store: Store | None = None
        self._builds = Builds(
            self._settings, specs, configs, folder=self.folder, keep=self._keep, progress=progress
        )
        self._faults: dict[Config, dict[tuple[str, str], None]] = {}
        """(build, what is wrong with its server) of each config: those are not measured further."""
        self._unjudged = unjudged(settings)
        self._failed: dict[Config, Infrastructure] = {}
        self._done: set[tuple[Config, Block]] = set()

    def outcome(self, config: Config) -> AbOutcome:
        """Run one config on all builds, or say what came out of it before.

        Raises:
            Infrastructure: a build did not start, or could not be judged or measured.
        """
        if config in self._failed:
            raise self._failed[config]
        if config not in self.outcomes:
            try:
                self.outcomes[config] = self._outcome(config)
            except Infrastructure as error:
                self._failed[config] = error
                raise
        return self.outcomes[config]

    def check(self) -> None:
        """Refuse options with which no server of a build can be had; starts none, and makes no worktree. Raises ServerError."""
        self._builds.check()

    def report(self) -> Report:
        """What came out so far, for reports: what is stored of it, so that a reader of the record sees the same."""
        return Report.of(self._stored())

    @property
    def begun(self) -> bool:
        """Whether there is anything to report."""
        return self._store is not None or bool(self._unkept)

    @property
    def left_out(self) -> tuple[str, ...]:
        """A line for what was asked for and is not part of this, what a reader is warned of, and each config without an outcome."""
        return (*self._unjudged, *self._warned, *unfinished(self._stored()))

    def alarm(self) -> None:
        """Begin to stop every server and return at once; for signal handlers."""
        self._builds.alarm()

    def close(self) -> None:
        """Stop the servers, close the file, remove the worktrees. May be called twice."""
        try:
            self._builds.close()
        finally:
            if self._store is not None:
                self._store.close()

    def _outcome(self, config: Config) -> AbOutcome:
        judged: list[tuple[str, str, Verdict]] = []
        out_of_it: set[str] = set()
        self._ask_the_others(config)

        def compared(passes: int) -> tuple[Comparison, ...]:
            self._take_turns(config, passes, judged, out_of_it)
            return self._compare(config, passes, out_of_it)

        comparisons, stopped = in_turns(
            self._design,
            compared,
            no_time=lambda passes: self._no_time(passes, len(self._builds.names) - len(out_of_it)),
            say=lambda text: self._progress(f"{config.id}: {text}"),
        )
        faults = tuple(self._faults.get(config, ()))
        outcome = AbOutcome(config.id, tuple(judged), comparisons, self._settings.strict, stopped, faults)
        self._note(outcome)
        return outcome

    def _ask_the_others(self, config: Config) -> None:
        """Before minutes go to the base: whether the other builds say at all what they take, and have the config among it.

        Raises Infrastructure.
        """
        for name in self._builds.names[1:]:
            with self._builds.held(name) as run:
                why = run.servers.unsupported([config]).get(config)
            if why is not None:
                raise Infrastructure(f"build {name}: {config.id} cannot run on it: {why}")

    def _no_time(self, passes: int, builds: int) -> str:
        """Why so many passes more of so many builds cannot begin; empty where the time budget has room for them."""
        needed = self._longest_stay_s * builds * passes
        left = self._budget.left_s
        if math.isinf(left) or needed <= left:
            return ""
        return f"no more passes: {passes} more take about {duration(needed)}, {FLAG} leaves {duration(max(0.0, left))}"

    def note_test(self, nodeid: str, outcome: str, text: str) -> None:
        """Keep what became of a test that did not pass."""
        if outcome != "passed":
            try:
                self._keep("test", nodeid=nodeid, outcome=outcome, text=text)
            except NotKept:
                self._unkept.append(Failing(nodeid, outcome, text))

    def stays(self, config: Config) -> int:
        """How many stays of all builds a config had; 0 where it came to no outcome, or a build was not measured to the end."""
        outcome = self.outcomes.get(config)
        if outcome is None or outcome.faults or not all(verdict.passed for _, _, verdict in outcome.judged):
            return 0
        return sum(of == config for of, _ in self._done)

    def note_timing(self, timing: Timing) -> None:
        """Keep how long a test took, for later plans; a disk that does not take it loses a plan, no figure."""
        with suppress(NotKept):
            self._keep("timing", timing=timing.as_json())

    def _note(self, outcome: AbOutcome) -> None:
        """Store what was judged of each build, and why it was not measured further."""
        for kind, fields in outcome.records:
            self._keep(kind, **fields)

    def _take_turns(
        self, config: Config, passes: int, judged: list[tuple[str, str, Verdict]], out_of_it: set[str]
    ) -> None:
        """The stays up to this number of passes that were not made yet."""
        stays = blocks(self._builds.names, passes=passes, rounds=self._rounds)
        coming = [one for one in stays if (config, one) not in self._done]
        together = (
            [tuple(of_pass) for _, of_pass in groupby(coming, key=lambda one: one.number)]
            if self._design.at_once
            else [(one,) for one in coming]
        )
        for up in together:
            self._done |= {(config, one) for one in up}
            here = [one.build for one in up if one.build not in out_of_it]
            with self._builds.held_together(here):
                if up[0].number == 0:
                    self._judge(config, up, judged, out_of_it)
                # The speed of wrong answers is no result, and costs no time; nor has that of a build with nothing to be compared with.
                up = tuple(one for one in up if not out_of_it & {one.build, self._builds.names[0]})
                if self._design.at_once:
                    self._stay_at_once(config, up, out_of_it)
                else:
                    for one in up:
                        self._stay(config, one, out_of_it)
                self._look_for_leaks(config, [name for name in here if name not in out_of_it], out_of_it)

    def _judge(
        self,
        config: Config,
        up: Sequence[Block],
        judged: list[tuple[str, str, Verdict]],
        out_of_it: set[str],
    ) -> None:
        """The verdicts on builds that are up for the first time; a corrupt one is out of it."""
        for one in up:
            with self._builds.named(one.build) as run:
                base = self._builds.run(self._builds.names[0])
                found = verify_build(run, base, config, self._cells)
                for text in not_as_asked(run, config):
                    self._note_fault(config, one.build, text, out_of_it)
            judged += found
            if not all(verdict.passed for _, _, verdict in found):
                out_of_it.add(one.build)

    def _look_for_leaks(self, config: Config, builds: Sequence[str], out_of_it: set[str]) -> None:
        """What a test of a single session would fail for after it: something still runs, or cache tokens are lost."""
        for build in builds:
            with self._builds.named(build) as run:
                for text in run.left_running():
                    self._note_fault(config, build, text, out_of_it)

    def _note_fault(self, config: Config, build: str, text: str, out_of_it: set[str]) -> None:
        """A build is not what was asked for, or does what a healthy one does not: that fails the test, and its speed is no result."""
        out_of_it.add(build)
        known = self._faults.setdefault(config, {})
        if (build, text) not in known:
            known[build, text] = None
            self._progress(f"build {build}: {config.id}: {text}")
            self._keep("fault", build=build, config=config.id, text=text)

    def _stay(self, config: Config, block: Block, out_of_it: set[str]) -> None:
        """One build has the machine for itself: its rounds of every cell, one after the other."""
        began = time.monotonic()
        with self._measuring(config, block.build, out_of_it) as run:
            run.progress(f"{config.id}: pass {block.number + 1}")
            run.get(config, "ab")
            self._cells.leave_out_what_does_not_fit(run, config)
            self._measure(run, config, block, out_of_it)
        self._note_length(block, time.monotonic() - began)

    def _stay_at_once(self, config: Config, up: Sequence[Block], out_of_it: set[str]) -> None:
        """All builds are up: round by round and cell by cell they take turns, so that the seconds between two of them are few."""
        if len(up) < 2:
            return
        began = time.monotonic()
        for one in up:
            with self._builds.named(one.build) as run:
                run.progress(f"{config.id}: pass {one.number + 1}")
                run.begin_stay(config)
                self._cells.leave_out_what_does_not_fit(run, config)
        self._note_caches(config, up)
        for count, key, build in turns(up, self._builds.names, self._cells.of(config)):
            if out_of_it & {build, self._builds.names[0]}:
                continue
            with self._measuring(config, build, out_of_it) as run:
                run.speed.turn(config, key, count, certain=up[0].first_round + up[0].rounds, natural=COMPARED)
        for one in up:
            if one.build not in out_of_it:
                with self._measuring(config, one.build, out_of_it) as run:
                    self._measure(run, config, one, out_of_it)
        self._note_length(up[0], (time.monotonic() - began) / len(up))

    @contextmanager
    def _measuring(self, config: Config, build: str, out_of_it: set[str]) -> Iterator[BuildRun]:
        """A build's run while it is measured: verify steps that cannot be true are the build's fault, and end its turn."""
        with self._builds.named(build) as run:
            try:
                yield run
            except AcceptLengthWrong as error:
                self._note_fault(config, build, str(error), out_of_it)

    def _note_caches(self, config: Config, up: Sequence[Block]) -> None:
        text = uneven_caches({one.build: self._builds.run(one.build).cache_tokens(config) for one in up})
        if text and not self._said_uneven:
            self._said_uneven = True
            self._warn(text)

    def _warn(self, text: str) -> None:
        self._warned.append(text)
        self._progress(text)
        self._keep("warning", text=text)

    def _measure(self, run: BuildRun, config: Config, block: Block, out_of_it: set[str]) -> None:
        for key in self._cells.of(config):
            figures = run.speed.measure(
                config, key, at_least=block.first_round + block.rounds, natural=COMPARED
            )
            if figures.accept_length is None:
                self._note_fault(config, run.spec.name, NO_STEPS, out_of_it)
                return

    def _note_length(self, block: Block, seconds: float) -> None:
        """How long a stay takes; the first also judges, and measures the baseline."""
        if block.number > 0:
            self._longest_stay_s = max(self._longest_stay_s, seconds)

    def _compare(self, config: Config, passes: int, out_of_it: set[str]) -> tuple[Comparison, ...]:
        base, *others = self._builds.names
        if base in out_of_it:
            return ()
        return tuple(
            self._design.compare(
                self._builds.run(base).results,
                self._builds.run(other).results,
                config=config.id,
                names=(base, other),
                passes=(passes, passes),
            )
            for other in others
            if other not in out_of_it
        )

    def _keep(self, kind: str, **fields: Any) -> None:
        if self._store is None:
            self._store = Store(self.folder / FILE)
            settings = mask_values(settings_json(self._settings))
            self._store.append(
                "run", plugin=__version__, started=self.started.isoformat(), settings=settings, resumed=False
            )
            names = list(self._builds.names)
            self._store.append("ab", builds=names, **self._design.as_json(), ends=True)
            for text in self._unjudged:
                self._store.append("warning", text=text)
        self._store.append(kind, **fields)

    def _stored(self) -> StoredRun:
        """The run as a reader of its record finds it."""
        records = () if self._store is None else tuple(self._store.records)
        found = rebuild(Stored(records, 0, 0), self.folder / FILE)
        found.results.failing.update({one.nodeid: one for one in self._unkept})
        return found


def unjudged(settings: Settings) -> tuple[str, ...]:
    """What was asked for and is no part of a comparison of builds, so that nobody takes its silence for a pass."""
    asked = [
        *(["expected figures (--ddtree-expected)"] if settings.expected is not None else []),
        *([f"thresholds ({', '.join(settings.gates)})"] if settings.gates else []),
    ]
    return (f"not judged in a comparison of builds: {' and '.join(asked)}",) if asked else ()
