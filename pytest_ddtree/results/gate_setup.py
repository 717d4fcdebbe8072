"""From options and stored runs to the gatekeeper of a session; everything that can be wrong is refused before a server starts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pytest_ddtree.grid import CellKey
from pytest_ddtree.options import OptionError
from pytest_ddtree.results.compare import Spread
from pytest_ddtree.results.entries import key_of, setting_of, started
from pytest_ddtree.results.expected import Expected, Key, Setting
from pytest_ddtree.results.expected_files import read_expected
from pytest_ddtree.results.fingerprint import Fingerprint
from pytest_ddtree.results.gatekeeper import Gatekeeper, GatePolicy, Update, headline_tests
from pytest_ddtree.results.gates import Design
from pytest_ddtree.results.metrics import METRICS, Metric, round_values
from pytest_ddtree.results.runs import StoredRun, find_runs, read_run
from pytest_ddtree.results.selectors import SelectorError, headline_cells
from pytest_ddtree.results.store import StoreCorrupt
from pytest_ddtree.results.thresholds import ThresholdError, check_thresholds, parse_threshold
from pytest_ddtree.results.tolerance import UNKNOWN, Start, StartSpread, start_spread

RUNS_READ = 30
"""Stored runs that are read for what a restart does to a figure; older ones are another machine by now."""

Starts = dict[tuple[Key, str], list[Start]]


@dataclass(frozen=True, slots=True, kw_only=True)
class GateOptions:
    """What the user declared."""

    expected: Path | None = None
    update_expected: bool = False
    update_new: bool = False
    accept_drift: str | None = None
    headline: tuple[str, ...] = ()
    gates: tuple[str, ...] = ()
    alpha: float = 0.001
    strict: bool = False

    @property
    def update(self) -> Update:
        """Which figures are recorded."""
        return "all" if self.update_expected else "new" if self.update_new else "no"

    @property
    def active(self) -> bool:
        """Whether anything is gated at all."""
        return self.expected is not None or bool(self.gates)


def make_policy(
    options: GateOptions, configs: Sequence[str], cells: Sequence[CellKey], arguments: Sequence[str] = ()
) -> GatePolicy:
    """The policy of a session. `configs` are the ids of the grid, the baseline's too; `arguments` are pytest's own.

    Raises:
        OptionError: a headline or threshold that fits nothing, options that go together and are not, or no expected figures at all.
    """
    for flag, given in (
        ("--ddtree-update-expected", options.update_expected),
        ("--ddtree-update-new", options.update_new),
        ("--ddtree-accept-drift", options.accept_drift is not None),
    ):
        if given and options.expected is None:
            raise OptionError(f"{flag} goes with --ddtree-expected PATH")
    if options.expected is not None and options.update == "no" and not options.expected.exists():
        raise OptionError(
            f"--ddtree-expected {options.expected} does not exist, so that every gate would fail once all is measured: mend the path, or "
            "record the first figures there with --ddtree-update-new"
        )
    if options.accept_drift is not None and not options.update_expected:
        raise OptionError("--ddtree-accept-drift goes with --ddtree-update-expected")
    try:
        headline = headline_cells(options.headline, configs, cells)
    except SelectorError as error:
        raise OptionError(f"--ddtree-headline: {error}") from None
    try:
        thresholds = tuple(parse_threshold(text) for text in options.gates)
        check_thresholds(thresholds, configs, cells)
    except ThresholdError as error:
        raise OptionError(f"--ddtree-gates: {error}") from None
    return GatePolicy(
        headline=headline,
        thresholds=thresholds,
        design=Design(alpha=options.alpha, tests=headline_tests(headline)),
        update=options.update,
        accept_drift=options.accept_drift,
        strict=options.strict,
        arguments=tuple(arguments),
    )


def make_gatekeeper(
    options: GateOptions,
    policy: GatePolicy,
    fingerprint: Fingerprint,
    results: Path,
    *,
    own: Path | None = None,
) -> tuple[Gatekeeper, list[str]]:
    """The gatekeeper, and warnings about stored runs that could not be read. `own` is the folder of the run that is gated.

    Raises:
        ExpectedBroken: the expected figures cannot be read.
    """
    expected: Expected | None = None
    starts: Starts = {}
    warnings: list[str] = []
    if options.expected is not None:
        expected = read_expected(options.expected)
        starts, warnings = local_starts(results, setting_of(fingerprint), own=own)
    run = None if own is None else own.name
    return Gatekeeper(policy, fingerprint, expected, local_starts=starts, run=run), warnings


def local_starts(results: Path, setting: Setting, *, own: Path | None = None) -> tuple[Starts, list[str]]:
    """The starts of each stored run of this setting, by (key, metric), and what could not be read.

    A run of several starts of one config counts once: its rounds are those of all of them. Runs with other server arguments are another
    build, and the run at `own` is none: what is to be judged must not widen the tolerance by which it is judged.
    """
    starts: Starts = {}
    warnings: list[str] = []
    for path in find_runs(results)[-RUNS_READ:]:
        if own is not None and path.parent == own:
            continue
        try:
            run = read_run(path)
        except StoreCorrupt as error:
            warnings.append(f"not used: {error}")
            continue
        if not run.session.values or setting_of(run.session) != setting:
            continue
        for config, cell in run.results.cells:
            figures, baseline = run.results.figures(config, cell), run.results.base(config, cell)
            if figures is None:
                # The speed of wrong answers says nothing of what a restart does.
                continue
            key = key_of(run.session, figures)
            for metric in METRICS.values():
                values = round_values(metric, figures, baseline)
                if values:
                    start = Start(started(run.session), values, run.id)
                    starts.setdefault((key, metric.name), []).append(start)
    return starts, warnings


def restart_spread(results: Path, now: StoredRun) -> Spread:
    """What a restart does to the cells of a run, from the other runs stored under `results`."""
    starts, _ = local_starts(results, setting_of(now.session), own=now.path.parent)

    def spread(config: str, cell: CellKey, metric: Metric) -> StartSpread:
        figures = now.results.cells.get((config, cell))
        if figures is None:
            return UNKNOWN
        return start_spread(starts.get((key_of(now.session, figures), metric.name), ()))

    return spread
