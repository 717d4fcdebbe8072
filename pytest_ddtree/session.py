"""What a pytest session keeps: its settings, its grid, the plan of the selected tests, and its `Run`."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import pytest

from pytest_ddtree import grid as grids
from pytest_ddtree import options
from pytest_ddtree.budget import Budget
from pytest_ddtree.matrix import cells_of
from pytest_ddtree.plan import Place, Plan

if TYPE_CHECKING:
    from pytest_ddtree.ab import Ab
    from pytest_ddtree.coding.problems import Problem
    from pytest_ddtree.ending import Signals
    from pytest_ddtree.report.merged import Merged
    from pytest_ddtree.results.gatekeeper import GatePolicy
    from pytest_ddtree.results.model import CellFigures
    from pytest_ddtree.run import Run
    from pytest_ddtree.workload.choice import Makers

GIVEN = pytest.StashKey[Mapping[str, tuple[str, str]]]()
"""What the user set: field -> (text, source)."""
SETTINGS = pytest.StashKey[options.Settings]()
RUN: pytest.StashKey[Run] = pytest.StashKey()
PLACE = pytest.StashKey[Place]()
MERGED: pytest.StashKey[Merged] = pytest.StashKey()
"""What several workers found, in their controller."""
PLAN = pytest.StashKey[Plan]()
POLICY: pytest.StashKey[GatePolicy] = pytest.StashKey()
PROBLEMS: pytest.StashKey[tuple[Problem, ...]] = pytest.StashKey()
PROBLEM_FAULTS = pytest.StashKey[str]()
"""What is wrong with the files of the coding problems."""
CELL_FAULT = pytest.StashKey[str]()
MAKERS: pytest.StashKey[Makers] = pytest.StashKey()
"""Makes the prompts; not there where the model's tokenizer is not on this host."""
AB: pytest.StashKey[Ab] = pytest.StashKey()
DROPPED = pytest.StashKey[tuple[grids.Config, ...]]()
"""Configs that `--ddtree-where` took out of the grid."""
BEGAN = pytest.StashKey[float]()
"""When the session began, on the monotonic clock."""
IMPOSSIBLE = pytest.StashKey[list[str]]()
"""Configs of the grid that the build cannot express, with the reasons."""
GATED: pytest.StashKey[tuple[CellFigures, list[dict[str, Any]]]] = pytest.StashKey()
"""Of a test: the figures that it measured, and what their gates said."""
SIGNALS: pytest.StashKey[Signals] = pytest.StashKey()
INTERRUPTED = pytest.StashKey[int]()
"""The exit code that the first SIGTERM or SIGHUP asked for."""
ASKED = pytest.StashKey[float]()
"""When pytest was last asked to end the session, on the monotonic clock: what asks may be lost on its way."""
LEAVING = pytest.StashKey[bool]()
"""Whether pytest has heard of an interruption, and ends the session because of it."""
ENDING = pytest.StashKey[bool]()
"""Whether the tests are over: who interrupts now finds the exit code set already."""
BUDGET = pytest.StashKey[Budget]()
GRID = pytest.StashKey[tuple[grids.Config, ...]]()


def settings_of(config: pytest.Config) -> options.Settings:
    """The session's settings."""
    return config.stash[SETTINGS]


def reported_of(config: pytest.Config) -> Run | Merged | None:
    """What reports are about: the session's run, or what its workers found; None where nothing of ours ran."""
    merged = config.stash.get(MERGED, None)
    return merged if merged is not None else config.stash.get(RUN, None)


def run_of(config: pytest.Config) -> Run:
    """The session's run, made on first use."""
    if RUN not in config.stash:
        from pytest_ddtree.rerun import Rerun
        from pytest_ddtree.run import Run

        run = Run(
            settings_of(config),
            judged_configs(config),
            config.stash.get(PLAN, Plan()),
            config.stash.get(POLICY, None),
            budget=config.stash.get(BUDGET, None),
            began=config.stash.get(BEGAN, None),
            place=config.stash.get(PLACE, None),
            makers=config.stash.get(MAKERS, None),
            progress=_progress(config),
            rerun=Rerun(config.stash.get(GIVEN, {}), config.invocation_params.dir),
            on_verified=lambda of, verdict: config.hook.pytest_ddtree_verified(config=of, verdict=verdict),
            on_measured=lambda of, figures: config.hook.pytest_ddtree_measured(config=of, figures=figures),
        )
        config.stash[RUN] = run
        _own(config, run.alarm, run.close)
    return config.stash[RUN]


def ab_of(config: pytest.Config) -> Ab:
    """The session's comparison of builds, made on first use."""
    if AB not in config.stash:
        from pytest_ddtree.ab import Ab
        from pytest_ddtree.results.builds import parse_builds

        settings = settings_of(config)
        builds = parse_builds(settings.build, settings.sglang_src)
        ab = Ab(
            settings,
            builds,
            grid_of(config),
            cells_in(config),
            passes=settings.ab_passes,
            progress=_progress(config),
            budget=config.stash.get(BUDGET, None),
        )
        config.stash[AB] = ab
        _own(config, ab.alarm, ab.close)
    return config.stash[AB]


def leave(config: pytest.Config) -> None:
    """End the session if a signal asked for it.

    Raised inside the signal handler, the exception is lost when the signal comes while a finalizer or a callback runs, or where a test
    catches everything; so the plugin asks again before the next test and at the next signal, and sets the exit code at the end. Only
    then: pytest prints no tables under a code that it does not know.
    """
    code = config.stash.get(INTERRUPTED, None)
    if code is not None:
        name = signal.Signals(code - 128).name
        late = config.stash.get(ENDING, False) or hasattr(config, "workerinput")
        config.stash[ASKED] = time.monotonic()
        pytest.exit(f"{name} received: servers are being stopped", returncode=code if late else None)


def _own(config: pytest.Config, alarm: Callable[[], None], close: Callable[[], None]) -> None:
    """Let signals stop an owner of servers, and the end of the session close it."""
    from pytest_ddtree.ending import Signals

    if SIGNALS not in config.stash:
        config.stash[SIGNALS] = Signals(config)
    config.stash[SIGNALS].watch(alarm)
    config.add_cleanup(close)


def grid_of(config: pytest.Config) -> tuple[grids.Config, ...]:
    """The speculative configs of the session."""
    if GRID not in config.stash:
        settings = settings_of(config)
        made = config.hook.pytest_ddtree_grid(settings=settings)
        if made is None:
            made = grids.make_grid(settings.budget, settings.topk, settings.window, settings.block_size)
        if settings.where is not None:
            made, config.stash[DROPPED] = _constrained(tuple(made), settings.where)
        config.stash[GRID] = tuple(made)
    return config.stash[GRID]


def cells_in(config: pytest.Config) -> tuple[grids.CellKey, ...]:
    """The cells of the session; none where the model's files do not allow what is asked, which ends the session with a usage
    error before a server starts."""
    try:
        return cells_of(settings_of(config))
    except options.OptionError as error:
        # Raised while tests are generated, it would come out as a traceback: `pytest_collection_finish` says it.
        config.stash[CELL_FAULT] = str(error)
        return ()


def judged_configs(config: pytest.Config) -> tuple[grids.Config, ...]:
    """The configs whose exactness is proved: the grid, and the grid under each value of `--ddtree-axis`."""
    if not settings_of(config).axis:
        return grid_of(config)
    from pytest_ddtree.server_axes import make_axes, under

    return (*grid_of(config), *under(make_axes(settings_of(config)), grid_of(config)))


def _constrained(
    configs: tuple[grids.Config, ...], constraint: str
) -> tuple[tuple[grids.Config, ...], tuple[grids.Config, ...]]:
    from pytest_ddtree.where import WhereError, parse_where, split

    try:
        stay, gone = split(configs, parse_where(constraint))
    except WhereError as error:
        raise pytest.UsageError(f"--ddtree-where {constraint!r}: {error}") from None
    if not stay:
        raise pytest.UsageError(
            f"--ddtree-where {constraint!r} leaves none of {', '.join(c.id for c in configs)}"
        )
    return tuple(stay), tuple(gone)


def _progress(config: pytest.Config) -> Callable[[str], None]:
    """Writes one line about what takes time (starts, verification), where a terminal or a log shows it at once."""
    capture = config.pluginmanager.getplugin("capturemanager")
    reporter = config.pluginmanager.getplugin("terminalreporter")

    def write(text: str) -> None:
        if reporter is None or reporter.verbosity < 0:
            return
        if capture is None:
            reporter.write_line(f"ddtree: {text}")
            return
        with capture.global_and_fixture_disabled():
            reporter.ensure_newline()
            reporter.write_line(f"ddtree: {text}")

    return write


def problems_of(config: pytest.Config) -> tuple[Problem, ...]:
    """The coding problems of the session, read once; none where their files have faults, which end the session
    with a usage error before a server starts."""
    if PROBLEMS not in config.stash:
        from pytest_ddtree.coding.builtin import builtin_problems
        from pytest_ddtree.coding.loaders.load import load_problems
        from pytest_ddtree.coding.problems import ProblemFilesError

        settings = settings_of(config)
        try:
            paths = settings.problems or (builtin_problems(),)
            config.stash[PROBLEMS] = load_problems(paths, ids=settings.problem, limit=settings.problem_limit)
        except ProblemFilesError as error:
            # Raised while tests are generated, it would come out as a traceback: `pytest_collection_finish` says it.
            config.stash[PROBLEM_FAULTS] = str(error)
            config.stash[PROBLEMS] = ()
    return config.stash[PROBLEMS]
