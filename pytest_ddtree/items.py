"""What the plugin reads off pytest's items, and the order in which it wants them."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import pytest

from pytest_ddtree.grid import CellKey, Config, sort_key
from pytest_ddtree.plan import Plan
from pytest_ddtree.turns import fair

if TYPE_CHECKING:
    from pytest_ddtree.coding.problems import Problem

SERVER_FIXTURE = "ddtree_server"
CONFIG_FIXTURE = "ddtree_config"
CELL_FIXTURE = "ddtree_cell"
PROBLEM_FIXTURE = "ddtree_problem"
SOLVE_FIXTURE = "ddtree_solve"
CLAUSE_FIXTURE = "ddtree_clause"
TOGETHER_FIXTURE = "ddtree_together"
BUILDS_FIXTURE = "ddtree_ab"
DRIFT_FIXTURE = "ddtree_drift"
SWEEP = 3
"""So many configs are a sweep, in which the machine may drift between the first and the last."""
SEARCH_FIXTURE = "ddtree_search"
REPLAY_FIXTURE = "ddtree_replay"
WINDOW_FIXTURE = "ddtree_window"
RELATIONS_FIXTURE = "ddtree_relations"
PREFIX = "ddtree_"
FULL_FIXTURE = "ddtree_rescore"
JUDGING_FIXTURES = frozenset({"ddtree_verdict", FULL_FIXTURE})
"""A test that uses one of these fails when its config is corrupt; the marker `exactness` alone promises nothing."""

SAMPLING_FIXTURES = frozenset({"ddtree_sampling", "ddtree_top_k"})
CALLED_FOR_JUDGING = frozenset({CLAUSE_FIXTURE, SEARCH_FIXTURE, REPLAY_FIXTURE, "ddtree_verify"})
"""A test that uses one of these judges answers, so the baseline's noise floor is needed."""


def is_ours(item: pytest.Item) -> bool:
    """Whether the item uses a fixture of this plugin."""
    return any(name.startswith(PREFIX) for name in fixtures_of(item))


def fixtures_of(item: pytest.Item) -> Sequence[str]:
    """Names of the fixtures that the item uses; items that are no functions have none."""
    names: Sequence[str] = getattr(item, "fixturenames", ())
    return names


def is_long(item: pytest.Item) -> bool:
    """Whether `--ddtree-profile smoke` leaves a test out: exactness beyond the short part of the contract."""
    names = fixtures_of(item)
    if SAMPLING_FIXTURES.intersection(names) or RELATIONS_FIXTURE in names:
        return True
    return CLAUSE_FIXTURE in names and not _param(item, CLAUSE_FIXTURE).short


def _param(item: pytest.Item, name: str) -> Any:
    callspec = getattr(item, "callspec", None)
    return callspec.params.get(name) if callspec is not None else None


def config_of(item: pytest.Item) -> Config | None:
    """The config whose server the item runs on; None where it has none."""
    value = _param(item, SERVER_FIXTURE)
    return value if isinstance(value, Config) else None


def judged_config_of(item: pytest.Item) -> Config | None:
    """The config that the item is about, with or without its server."""
    value = _param(item, CONFIG_FIXTURE)
    return value if isinstance(value, Config) else config_of(item)


def cell_of(item: pytest.Item) -> CellKey | None:
    """The cell that the item measures."""
    value = _param(item, CELL_FIXTURE)
    return value if isinstance(value, CellKey) else None


def problem_of(item: pytest.Item) -> Problem | None:
    """The coding problem that the item solves."""
    value: Problem | None = _param(item, PROBLEM_FIXTURE)
    return value


def own_problems_of(item: pytest.Item) -> tuple[Problem, ...]:
    """The coding problems that an item which solves some has among its parameters, alone or in lists; the suite's own are not meant."""
    if SOLVE_FIXTURE not in fixtures_of(item):
        return ()
    from pytest_ddtree.coding.problems import Problem

    callspec = getattr(item, "callspec", None)
    found: list[Problem] = []
    for name, value in ({} if callspec is None else callspec.params).items():
        if name != PROBLEM_FIXTURE:
            values = value if isinstance(value, list | tuple) else (value,)
            found += [one for one in values if isinstance(one, Problem)]
    return tuple(found)


def clause_of(item: pytest.Item) -> str | None:
    """Name of the clause of the contract that the item carries out."""
    return getattr(_param(item, CLAUSE_FIXTURE), "name", None)


def plan_of(items: Iterable[pytest.Item]) -> Plan:
    """What the selected items need."""
    configs: set[Config] = set()
    exactness: set[Config] = set()
    full: set[Config] = set()
    cells: set[CellKey] = set()
    problems: dict[str, Problem] = {}
    own: dict[str, Problem] = {}
    windows: set[Config] = set()
    sampled: set[Config] = set()
    clauses = False
    for item in items:
        config = judged_config_of(item)
        if config is None:
            continue
        configs.add(config)
        if JUDGING_FIXTURES.intersection(fixtures_of(item)):
            exactness.add(config)
        if FULL_FIXTURE in fixtures_of(item):
            full.add(config)
        if WINDOW_FIXTURE in fixtures_of(item):
            windows.add(config)
        if SAMPLING_FIXTURES.intersection(fixtures_of(item)):
            sampled.add(config)
        clauses = clauses or not CALLED_FOR_JUDGING.isdisjoint(fixtures_of(item))
        problem = problem_of(item)
        if problem is not None:
            problems[problem.task_id] = problem
        own |= {one.task_id: one for one in own_problems_of(item)}
        cell = cell_of(item)
        if cell is not None:
            cells.add(cell)
    return Plan(
        configs=frozenset(configs),
        exactness=frozenset(exactness),
        full=frozenset(full),
        windows=frozenset(windows),
        cells=frozenset(cells),
        sampled=frozenset(sampled),
        clauses=clauses,
        problems=tuple(problems.values()),
        own_problems=tuple(one for name, one in own.items() if name not in problems),
    )


def _features(config: Config) -> tuple[float | None, ...]:
    """What a drift of the machine must not be mistaken for."""
    full = config.window is None
    return (config.kind == "chain", config.budget, config.topk, full, config.window, config.block_size)


def by_config(items: Sequence[pytest.Item]) -> list[pytest.Item]:
    """The items with ours grouped by config, baseline first; items that need no server of a config come after those that do.

    Configs take their turns in an order in which no knob goes up or down with time, as far as their number allows: a machine that
    gets slower must not make the largest budget look slow. The first of the grid stays first.
    Stable: within a config the order stays what it was (failed first, random, ...). Tests of others keep their places.
    """
    places = [index for index, item in enumerate(items) if is_ours(item)]

    configs = {config for item in items if (config := config_of(item)) is not None}
    trees = fair(tuple(sorted((one for one in configs if one.speculative), key=sort_key)), _features)
    turn = {config: place for place, config in enumerate([*(configs - set(trees)), *trees])}

    def key(item: pytest.Item) -> tuple[bool, int]:
        config = config_of(item)
        return (True, 0) if config is None else (False, turn[config])

    ordered = list(items)
    for place, item in zip(places, sorted((items[index] for index in places), key=key), strict=True):
        ordered[place] = item
    return ordered


def _beyond_a_comparison(items: Sequence[pytest.Item]) -> list[str]:
    """Clauses of the contract and coding problems among the items, in words: a comparison of builds judges nothing like them."""
    clauses = {clause for item in items if (clause := clause_of(item)) is not None}
    problems = {problem.task_id for item in items if (problem := problem_of(item)) is not None}
    counts = ((len(clauses), "clause", " of the contract"), (len(problems), "coding problem", ""))
    return [f"{count} {what}{'s' if count > 1 else ''}{rest}" for count, what, rest in counts if count]


class Sorter:
    """Sorts by config after every other plugin has reordered: a server of 590 GB is started once, whatever `--ff` does."""

    def __init__(
        self,
        *,
        compares: bool,
        builds: bool,
        searches: bool = False,
        replays: bool = False,
        smoke: bool = False,
    ) -> None:
        self._builds = builds
        self._replays = replays
        self._smoke = smoke
        self._long: list[str] = []
        self._unbuilt: list[str] = []
        self._wants = {TOGETHER_FIXTURE: compares, SEARCH_FIXTURE: searches}

    def _wanted(self, item: pytest.Item) -> bool:
        """Tests that compare need something to compare with, and builds or a saved schedule are all that a session of theirs runs.

        Left in, they would be skipped in every other run, which is only noise.
        """
        names = fixtures_of(item)
        if BUILDS_FIXTURE in names or (self._builds and is_ours(item)):
            return self._builds and BUILDS_FIXTURE in names
        if REPLAY_FIXTURE in names or (self._replays and is_ours(item)):
            return self._replays and REPLAY_FIXTURE in names
        if self._smoke and is_long(item):
            return False
        if WINDOW_FIXTURE in names:
            config = config_of(item)
            return config is None or config.window is not None
        return all(wanted or fixture not in names for fixture, wanted in self._wants.items())

    def left_out(self) -> list[str]:
        """What the profile, or a comparison of builds, took out of the selection: a short proof must not be taken for the whole one."""
        found = []
        if self._long:
            names = ", ".join(self._long)
            found.append(f"--ddtree-profile smoke leaves out {len(self._long)} of what was selected: {names}")
        if self._unbuilt:
            names = " and ".join(self._unbuilt)
            found.append(
                f"--ddtree-build compares answers and speed, and leaves out of what was selected: {names}; a session of one build runs them"
            )
        return found

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_collection_modifyitems(
        self, config: pytest.Config, items: list[pytest.Item]
    ) -> Generator[None, None, None]:
        yield
        speculative = {one for item in items if (one := config_of(item)) is not None and one.speculative}
        self._wants[DRIFT_FIXTURE] = len(speculative) >= SWEEP
        kept: list[pytest.Item] = []
        left: list[pytest.Item] = []
        for item in items:
            (kept if self._wanted(item) else left).append(item)
        if self._smoke:
            # Named after what each guards; once, however many configs it would have run on.
            names = [
                clause_of(item) or getattr(item, "originalname", item.name) for item in left if is_long(item)
            ]
            self._long = list(dict.fromkeys(names))
        if self._builds:
            self._unbuilt = _beyond_a_comparison(left)
        if left:
            config.hook.pytest_deselected(items=left)
        items[:] = by_config(kept)
