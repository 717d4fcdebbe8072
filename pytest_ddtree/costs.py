"""From the selected items to what they cost (`--ddtree-plan`), and the clock that times them for later plans."""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Generator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from pytest_ddtree.cell_costs import CellCost, Rounds, cell_costs
from pytest_ddtree.cell_costs import counts as cell_counts
from pytest_ddtree.estimate import Cost, Count, PlannedStart, PlannedTest, Timing, estimate, lines
from pytest_ddtree.grid import BASELINE, CellKey, Config, ordered
from pytest_ddtree.items import (
    BUILDS_FIXTURE,
    DRIFT_FIXTURE,
    RELATIONS_FIXTURE,
    SOLVE_FIXTURE,
    cell_of,
    clause_of,
    config_of,
    fixtures_of,
    is_ours,
    judged_config_of,
    own_problems_of,
    problem_of,
)
from pytest_ddtree.options import Settings
from pytest_ddtree.session import AB, BUDGET, PLAN, POLICY, RUN, cells_in, run_of, settings_of

if TYPE_CHECKING:
    from pytest_ddtree.ab_cost import AbCost
    from pytest_ddtree.plan import Plan
    from pytest_ddtree.resuming import Recall

RESCORE_FIXTURE = "ddtree_rescore"
STORED_FIXTURES = ("ddtree_mismatches", "ddtree_verdict", RESCORE_FIXTURE)
"""What they give is stored with a complete config."""
CODING_VERDICT_FIXTURE = "ddtree_coding_verdict"


class Clock:
    """Times every test of ours for later plans, and lets none begin once the time budget is spent."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._skipped = 0
        self._ran: set[str] = set()

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        budget = self._config.stash.get(BUDGET, None)
        if budget is not None and budget.spent and is_ours(item):
            self._skipped += 1
            pytest.skip(f"out of time: {budget}; what was measured is valid")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" and not report.skipped:
            self._ran.add(report.nodeid)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        began = time.monotonic()
        done = yield
        if is_ours(item) and item.nodeid in self._ran:
            self._keep(item, time.monotonic() - began)
        return done

    def _keep(self, item: pytest.Item, seconds: float) -> None:
        stash = self._config.stash
        run, builds = stash.get(RUN, None), stash.get(AB, None)
        test, config = planned(item, settings_of(self._config)), judged_config_of(item)
        # A resumed run did a part of the work earlier: its times would promise too much.
        if run is not None and run.resumed is None:
            run.store_late("timing", timing=Timing.of(test, seconds, test.amount).as_json())
        # What a comparison does beyond what is certain depends on what it finds.
        elif builds is not None and config is not None and (stays := builds.stays(config)):
            builds.note_timing(Timing.of(test, seconds, float(stays)))

    def pytest_sessionfinish(self) -> None:
        run = self._config.stash.get(RUN, None)
        if self._skipped and run is not None and not run.results.empty:
            tests = f"{self._skipped} test{'s' if self._skipped > 1 else ''}"
            text = f"{self._config.stash[BUDGET]}: {tests} did not run and judged nothing; what was measured before is valid"
            run.results.warnings.append(text)
            run.store_late("warning", text=text)


class PlanOnly:
    """`--ddtree-plan`: says what the selection costs, and runs nothing."""

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        reporter = session.config.pluginmanager.getplugin("terminalreporter")
        ours = [item for item in session.items if is_ours(item)]
        text = plan_lines(session.config, ours) if ours else ["no selected test needs a server"]
        if reporter is not None:
            reporter.section("ddtree: plan; nothing is started")
            for line in text:
                reporter.write_line(line)
        return True


def planned(item: pytest.Item, settings: Settings) -> PlannedTest:
    """A selected item as the estimate knows it."""
    config, cell, clause, problem = judged_config_of(item), cell_of(item), clause_of(item), problem_of(item)
    what = cell.id if cell else clause or (problem.task_id if problem else "")
    amount = 1.0
    if BUILDS_FIXTURE in fixtures_of(item):
        # The stays that are certain; most of their time is a start, on a real engine.
        amount = float(settings.ab_passes * len(settings.build))
    elif cell is not None:
        amount = float(settings.output * settings.turnovers * settings.rounds)
    elif problem is None:
        amount = float(settings.exactness_prompts * settings.exactness_output)
    name = str(getattr(item, "originalname", None) or item.name)
    return PlannedTest(test=name, config="" if config is None else config.id, what=what, amount=amount)


def plan_lines(config: pytest.Config, items: Sequence[pytest.Item]) -> list[str]:
    """What the selected items of ours cost, as text. Reads the stores; starts and writes nothing."""
    from pytest_ddtree.results.timings import earlier_timings
    from pytest_ddtree.server_setup import server_settings

    settings, run = settings_of(config), run_of(config)
    selected = len(items)
    items = left_to_do(items, run.recall)
    tests = [planned(item, settings) for item in items]
    timings = earlier_timings(settings.results, run.fingerprint)
    slots = server_settings(settings, run.facts, run.run_dir).servers_at_once
    starts = starts_of(config, items, slots=slots)
    cells = [cell for item in items if (cell := cell_of(item)) is not None]
    configs = {judged_config_of(item) for item in items if cell_of(item) is not None}
    costs, compared = cell_costs_of(config, items, run.recall), comparison_of(config, items)
    taken = selected - len(items)
    said = [f"taken over from {run.run_dir.name}: {taken} of {selected} tests cost nothing"] if taken else []
    if not items:
        return said
    said += lines(
        Cost(
            starts=starts,
            cells=len(cells) if compared is None else len(compared.cells) * len(compared.configs),
            configs=len(configs) if compared is None else len(compared.configs),
            builds=1 if compared is None else len(compared.builds),
            counts=counts_of(config, items, costs, run.recall) if compared is None else compared.counts(),
            estimate=estimate(tests, timings) if timings else None,
            source=str(settings.results),
            bound_s=_bound(settings, starts, items, costs, compared),
            budget_s=settings.time_budget,
        )
    )
    if settings.server == "sglang":
        said.append(
            "the build was not asked: configs that it cannot express are counted, and would be skipped"
        )
    return said


def left_to_do(items: Sequence[pytest.Item], recall: Recall | None) -> list[pytest.Item]:
    """The items that still cost something: of a resumed run not those whose outcome is stored."""
    return [item for item in items if recall is None or not _taken_over(item, recall)]


def _taken_over(item: pytest.Item, recall: Recall) -> bool:
    config, clause = judged_config_of(item), clause_of(item)
    if config is None or not recall.complete(config):
        return False
    if clause is not None:
        return recall.clause(config, clause) is not None
    return cell_of(item) is not None or any(name in STORED_FIXTURES for name in fixtures_of(item))


def starts_of(config: pytest.Config, items: Sequence[pytest.Item], *, slots: int) -> tuple[PlannedStart, ...]:
    """The starts that the items need, in their order, each with its reason."""
    settings, plan = settings_of(config), config.stash[PLAN]
    if settings.server == "url" or not items:
        return ()
    if (compared := comparison_of(config, items)) is not None:
        return compared.starts()
    needed: set[Config] = {one for item in items if (one := config_of(item)) is not None}
    starts = []
    for one in ordered({*needed, *({BASELINE} if plan.needs_baseline and settings.has_baseline else ())}):
        own = "its tests" if one in needed else ""
        shared = (
            "answers and speeds that the configs are compared with"
            if one == BASELINE and plan.needs_baseline
            else ""
        )
        starts.append(PlannedStart(one.id, " and ".join(part for part in (own, shared) if part)))
    if any(cell_of(item) for item in items) and settings.server != "reference" and settings.has_baseline:
        starts.append(
            PlannedStart(
                "baseline", "best-baseline: where its own best flags are not the speculative servers'", False
            )
        )
    if any(RESCORE_FIXTURE in fixtures_of(item) for item in items) and slots < 2:
        starts.append(PlannedStart("baseline", "rescore: level full at the end, one server at a time"))
    elif any(CODING_VERDICT_FIXTURE in fixtures_of(item) for item in items) and slots < 2:
        starts.append(
            PlannedStart("baseline", "rescore: where a coding answer differs from the baseline's", False)
        )
    starts += _for_problems(settings, items, slots)
    starts += _probes(settings, plan, needed)
    if any(RELATIONS_FIXTURE in fixtures_of(item) for item in items):
        starts += _related(run_of(config).configs, plan, needed)
    if any(DRIFT_FIXTURE in fixtures_of(item) for item in items) and slots < 2:
        starts.append(
            PlannedStart("baseline", "drift: its cells once more at the end, where it is not up", False)
        )
    return tuple(starts)


def comparison_of(config: pytest.Config, items: Sequence[pytest.Item]) -> AbCost | None:
    """What the comparison of builds costs; None where none is selected."""
    compared = [c for item in items if BUILDS_FIXTURE in fixtures_of(item) and (c := judged_config_of(item))]
    if not compared:
        return None
    from pytest_ddtree.ab_cost import AbCost
    from pytest_ddtree.results.builds import parse_builds

    settings = settings_of(config)
    return AbCost(
        builds=tuple(build.name for build in parse_builds(settings.build, settings.sglang_src)),
        configs=tuple(dict.fromkeys(one.id for one in compared)),
        cells=cells_in(config),
        passes=settings.ab_passes,
        rounds=settings.rounds,
        min_rounds=settings.min_rounds,
        turnovers=settings.turnovers,
        prompts=settings.exactness_prompts,
        flags_may_differ=settings.server != "reference" and settings.has_baseline,
        at_once=settings.ab_at_once,
    )


def _for_problems(settings: Settings, items: Sequence[pytest.Item], slots: int) -> list[PlannedStart]:
    """Starts for problems that only the tests know; none where a test runs on the baseline too, which then has answered before."""
    asking = {
        one
        for item in items
        if SOLVE_FIXTURE in fixtures_of(item) and problem_of(item) is None and not own_problems_of(item)
        if (one := config_of(item)) is not None
    }
    if not asking or BASELINE in asking or not settings.has_baseline:
        return []
    reason = "ddtree_solve: problems that only the tests know; once more for each that is not asked with the others"
    again = ordered(asking) if slots < 2 else []
    return [PlannedStart(one.id, reason, False) for one in (BASELINE, *again)]


def _probes(settings: Settings, plan: Plan, needed: Collection[Config]) -> list[PlannedStart]:
    """Configs with the full context that are started for `test_window_acts` alone; see `WindowProbe.before`."""
    from pytest_ddtree.windows import REASON

    if settings.server != "reference" and settings.profile != "full":
        return []
    windowed = [one for one in plan.windows if one.window is not None and one in needed]
    return [
        PlannedStart(full.id, f"{REASON}: the windows of the grid are compared with it")
        for full in ordered({replace(one, window=None) for one in windowed} - plan.configs)
    ]


def _related(configs: Sequence[Config], plan: Plan, needed: Collection[Config]) -> list[PlannedStart]:
    """Configs that are asked for their accept lengths because no selected test verifies them; one that has tests may still be up."""
    asked = ordered({one for one in configs if one.axis is None} - plan.exactness)
    reason = "relations: its accept lengths, for no selected test verifies it"
    return [PlannedStart(one.id, reason, certain=one not in needed) for one in asked]


def cell_costs_of(
    config: pytest.Config, items: Sequence[pytest.Item], recall: Recall | None
) -> tuple[CellCost, ...]:
    """What the cells cost that the items measure or need of the baseline; rounds that a resumed run has are not counted."""
    from pytest_ddtree.drifting import CELLS
    from pytest_ddtree.results.order import drift_cells

    settings, plan = settings_of(config), config.stash[PLAN]
    selected = [(one, cell) for item in items if (cell := cell_of(item)) and (one := judged_config_of(item))]
    if not selected:
        return ()
    compared = plan.cells if plan.needs_baseline and settings.has_baseline else frozenset[CellKey]()
    drifts = any(DRIFT_FIXTURE in fixtures_of(item) for item in items)
    return cell_costs(
        selected,
        compared=compared,
        again=drift_cells(list(compared), 1.0, math.inf, most=CELLS) if drifts else (),
        wanted=Rounds(least=settings.min_rounds, most=settings.rounds),
        policy=config.stash.get(POLICY, None),
        expected=settings.expected is not None,
        measured=lambda one, cell: 0 if recall is None else len(recall.rounds(one, cell)),
    )


def counts_of(
    config: pytest.Config, items: Sequence[pytest.Item], cells: Sequence[CellCost], recall: Recall | None
) -> tuple[Count, ...]:
    """Requests and what else is counted, least and most."""
    settings, plan = settings_of(config), config.stash[PLAN]
    counts: list[Count] = []
    if cells:
        counts += cell_counts(cells, settings.turnovers)
    if plan.exactness or plan.cells:
        speculative = len(
            [one for one in plan.configs if one.speculative and not (recall and recall.complete(one))]
        )
        answers = settings.exactness_prompts + settings.exactness_prompts // 2 + 1
        counts.append(
            Count(
                "answers that prove exactness, and the judging of each",
                speculative * answers,
                speculative * answers,
            )
        )
    clauses = sum(clause_of(item) is not None for item in items)
    if clauses:
        counts.append(Count("clauses of the contract", clauses, clauses))
    own = {(config_of(item), one.task_id) for item in items for one in own_problems_of(item)}
    solved = sum(problem_of(item) is not None for item in items) + len(own)
    if solved:
        both = solved + (len(plan.problems) + len(plan.own_problems) if plan.needs_baseline else 0)
        both *= settings.coding_samples
        # Flips are asked again on both sides, if any; at most every problem flips.
        again = 2 * solved * settings.coding_reruns if settings.coding_temperature == 0 else 0
        counts.append(Count("answers to coding problems, the baseline's included", both, both + again))
    return tuple(counts)


def _bound(
    settings: Settings,
    starts: Sequence[PlannedStart],
    items: Sequence[pytest.Item],
    cells: Sequence[CellCost],
    compared: AbCost | None,
) -> float:
    """Seconds if everything took as long as its time-out allows: what certainly ends a run that hangs."""
    if compared is not None:
        streams = compared.serial_requests
    else:
        others = sum(cell_of(item) is None for item in items)
        streams = sum(one.serial(settings.turnovers) for one in cells) + others * settings.exactness_prompts
    return sum(one.times for one in starts) * settings.start_timeout + streams * settings.request_timeout
