"""Two builds of the engine in one session: they take turns, A B B A, answer the same prompts and are judged by the base's baseline."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pytest_ddtree import __version__
from pytest_ddtree.ab_outcome import AbOutcome
from pytest_ddtree.budget import FLAG, Budget, duration
from pytest_ddtree.build_run import BuildRun
from pytest_ddtree.errors import Infrastructure, NotKept, NotVerified
from pytest_ddtree.exactness.levels import collect, first_divergence
from pytest_ddtree.exactness.rule import judge
from pytest_ddtree.exactness.verdict import Verdict
from pytest_ddtree.grid import BASELINE, CellKey, Config
from pytest_ddtree.options import Settings, settings_json
from pytest_ddtree.report.findings import Report, unfinished
from pytest_ddtree.results.builds import BuildSpec
from pytest_ddtree.results.change import Comparison
from pytest_ddtree.results.model import Failing
from pytest_ddtree.results.order import Block, blocks
from pytest_ddtree.results.runs import FILE, StoredRun, rebuild
from pytest_ddtree.results.secrets import mask_values
from pytest_ddtree.results.selectors import headline_cells
from pytest_ddtree.results.store import Store, Stored
from pytest_ddtree.results.taking_turns import AbDesign, in_turns, rounds_of_stay
from pytest_ddtree.servers.errors import ServerError
from pytest_ddtree.servers.source import state
from pytest_ddtree.workload.endings import COMPARED
from pytest_ddtree.worktrees import NoWorktree, Worktrees


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
        )
        self._budget = budget or Budget()
        self._longest_stay_s = 0.0
        self._settings = replace(
            settings, rounds=self._rounds, min_rounds=min(self._rounds, settings.min_rounds)
        )
        self._passes = passes
        self._specs = tuple(specs)
        self._configs = configs
        self._cells = tuple(sorted(cells))
        self._progress = progress
        self._store: Store | None = None
        self._worktrees: Worktrees | None = None
        self._runs: dict[str, BuildRun] = {}
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
        for spec in self._specs:
            if spec.kind == "git":
                continue
            try:
                self._run(spec.name).check()
            except ServerError as error:
                raise type(error)(
                    f"build {spec.name}: {error.what}", why=error.why, hint=error.hint
                ) from None

    def report(self) -> Report:
        """What came out so far, for reports: what is stored of it, so that a reader of the record sees the same."""
        return Report.of(self._stored())

    @property
    def begun(self) -> bool:
        """Whether there is anything to report."""
        return self._store is not None or bool(self._unkept)

    @property
    def left_out(self) -> tuple[str, ...]:
        """A line for what was asked for and is not part of this, and for each config that came to no outcome."""
        return (*self._unjudged, *unfinished(self._stored()))

    def alarm(self) -> None:
        """Begin to stop every server and return at once; for signal handlers."""
        for run in self._runs.values():
            run.alarm()

    def close(self) -> None:
        """Stop the servers, close the file, remove the worktrees. May be called twice."""
        try:
            for run in self._runs.values():
                run.close()
        finally:
            if self._store is not None:
                self._store.close()
            if self._worktrees is not None:
                self._worktrees.close()

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
            no_time=self._no_time,
            say=lambda text: self._progress(f"{config.id}: {text}"),
        )
        outcome = AbOutcome(config.id, tuple(judged), comparisons, self._settings.strict, stopped)
        self._note(outcome)
        return outcome

    def _ask_the_others(self, config: Config) -> None:
        """Before minutes go to the base: whether the other builds say at all what they take, and have the config among it.

        Raises Infrastructure.
        """
        for spec in self._specs[1:]:
            with self._held(spec.name) as run:
                why = run.servers.unsupported([config]).get(config)
            if why is not None:
                raise Infrastructure(f"build {spec.name}: {config.id} cannot run on it: {why}")

    def _no_time(self, passes: int) -> str:
        """Why so many passes more cannot begin; empty where the time budget has room for them."""
        needed = self._longest_stay_s * len(self._specs) * passes
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

    def _note(self, outcome: AbOutcome) -> None:
        """Store what was judged of each build, and why it was not measured further."""
        for kind, fields in outcome.records:
            self._keep(kind, **fields)

    def _take_turns(
        self, config: Config, passes: int, judged: list[tuple[str, str, Verdict]], out_of_it: set[str]
    ) -> None:
        """The stays up to this number of passes that were not made yet."""
        names = [spec.name for spec in self._specs]
        for block in blocks(names, passes=passes, rounds=self._rounds):
            if block.build in out_of_it or (config, block) in self._done:
                continue
            self._done.add((config, block))
            with self._held(block.build) as run:
                if block.number == 0:
                    found = self._verify(run, config)
                    judged += found
                    if not all(verdict.passed for _, _, verdict in found):
                        # The speed of wrong answers is no result, and costs no time.
                        out_of_it.add(block.build)
                if out_of_it & {block.build, names[0]}:
                    # Nor is that of a build that has nothing to be compared with.
                    continue
                self._stay(run, config, block)

    @contextmanager
    def _held(self, name: str) -> Iterator[BuildRun]:
        """A build's run while it has the machine: what breaks names the build, and its servers are gone afterwards."""
        run = self._run(name)
        try:
            yield run
        except NotKept:
            raise
        except Infrastructure as error:
            raise Infrastructure(f"build {name}: {type(error).__name__}: {error}") from error
        finally:
            run.release()

    def _verify(self, run: BuildRun, config: Config) -> list[tuple[str, str, Verdict]]:
        """Judge a build by its own baseline, and by the base's recorded answers."""
        name, base = run.spec.name, self._run(self._specs[0].name)
        own = run.verifier.baseline
        if run is base:
            for key in self._cells:
                run.speed.measure(BASELINE, key)
        else:
            run.speed.use_prompts(base.chosen)
        found = [(name, name, run.verifier.verify(config))]
        if run is not base:
            reference = base.verifier.baseline
            prompts = run.verifier.prompts()
            asking = collect(
                run.async_client(run.get(config)),
                prompts,
                output=self._settings.exactness_output,
                concurrency=run.verifier.concurrency,
                ignore_eos=True,
            )
            answers = first_divergence(prompts, run.await_(asking), reference.answers)
            rule = base.verifier.rule(reference.float32 and own.float32)
            verdict = judge(answers, reference.floor, rule, config=config.id, level="first-divergence")
            run.store("verdict", verdict=verdict.as_json(), against=base.spec.name)
            run.progress(f"{config.id} against the answers of {base.spec.name}: {verdict.summary()}")
            if verdict.kind == "unknown":
                raise NotVerified(
                    f"{config.id} against the answers of {base.spec.name}: unknown, which is no pass: {'; '.join(verdict.reasons)}"
                )
            found.append((name, base.spec.name, verdict))
        return found

    def _stay(self, run: BuildRun, config: Config, block: Block) -> None:
        run.progress(f"{config.id}: pass {block.number + 1}")
        began = time.monotonic()
        run.get(config, "ab")
        for key in self._cells:
            run.speed.measure(config, key, at_least=block.first_round + block.rounds, natural=COMPARED)
        if block.number > 0:
            # The first stay also judges, and measures the baseline.
            self._longest_stay_s = max(self._longest_stay_s, time.monotonic() - began)

    def _compare(self, config: Config, passes: int, out_of_it: set[str]) -> tuple[Comparison, ...]:
        base, *others = (spec.name for spec in self._specs)
        if base in out_of_it:
            return ()
        return tuple(
            self._design.compare(
                self._run(base).results,
                self._run(other).results,
                config=config.id,
                names=(base, other),
                passes=(passes, passes),
            )
            for other in others
            if other not in out_of_it
        )

    def _run(self, name: str) -> BuildRun:
        if name not in self._runs:
            spec = next(spec for spec in self._specs if spec.name == name)
            self._runs[name] = BuildRun(
                spec,
                self._settings_of(spec),
                self._configs,
                folder=self.folder,
                keep=self._keep,
                progress=self._progress,
            )
        return self._runs[name]

    def _settings_of(self, spec: BuildSpec) -> Settings:
        settings = self._settings
        if spec.kind == "python":
            return replace(settings, python=Path(spec.where))
        if spec.kind == "args":
            return replace(settings, server_args=(*settings.server_args, *spec.arguments))
        path = Path(spec.where) if spec.kind == "source" else self._worktree(spec)
        return replace(settings, sglang_src=importable(path))

    def _worktree(self, spec: BuildSpec) -> Path:
        """A checkout of a revision beside the results; gone when the session is, however it ends."""
        assert self._settings.sglang_src is not None
        if spec.where == "HEAD" and state(self._settings.sglang_src).dirty:
            self._progress(
                f"build {spec.name}: git:HEAD has none of the uncommitted changes in {self._settings.sglang_src}; "
                f"{spec.name}={self._settings.sglang_src} would"
            )
        try:
            if self._worktrees is None:
                self._worktrees = Worktrees(self._settings.sglang_src, self.folder / "worktrees")
            return self._worktrees.add(spec.name, spec.where)
        except NoWorktree as error:
            raise Infrastructure(f"build {spec.name}: {error}") from None

    def _keep(self, kind: str, **fields: Any) -> None:
        if self._store is None:
            self._store = Store(self.folder / FILE)
            settings = mask_values(settings_json(self._settings))
            self._store.append(
                "run", plugin=__version__, started=self.started.isoformat(), settings=settings, resumed=False
            )
            names = [spec.name for spec in self._specs]
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


def importable(checkout: Path) -> Path:
    """The folder of a checkout that goes on PYTHONPATH: SGLang keeps its package under `python/`."""
    return checkout / "python" if (checkout / "python" / "sglang").is_dir() else checkout
