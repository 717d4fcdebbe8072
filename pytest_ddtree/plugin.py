"""The pytest plugin: options in, markers, ordering, reports out. Everything heavy is imported when a test of ours runs."""

from __future__ import annotations

import os
import time
from collections.abc import Generator
from itertools import pairwise
from typing import Any

import pytest

from pytest_ddtree import grid as grids
from pytest_ddtree import hookspecs, options
from pytest_ddtree.asked import asks_for_ours, given_of
from pytest_ddtree.budget import Budget
from pytest_ddtree.costs import Clock, PlanOnly
from pytest_ddtree.errors import Infrastructure
from pytest_ddtree.items import (
    BUILDS_FIXTURE,
    CELL_FIXTURE,
    CLAUSE_FIXTURE,
    CONFIG_FIXTURE,
    PROBLEM_FIXTURE,
    SERVER_FIXTURE,
    Sorter,
    fixtures_of,
    is_ours,
    plan_of,
)
from pytest_ddtree.session import (
    AB,
    BEGAN,
    BUDGET,
    CELL_FAULT,
    DROPPED,
    GIVEN,
    IMPOSSIBLE,
    INTERRUPTED,
    MAKERS,
    PLACE,
    PLAN,
    POLICY,
    PROBLEM_FAULTS,
    RUN,
    SETTINGS,
    cells_in,
    grid_of,
    judged_configs,
    leave,
    problems_of,
    reported_of,
    run_of,
    settings_of,
)

pytest_plugins = [
    "pytest_ddtree.fixtures",
    "pytest_ddtree.exactness_fixtures",
    "pytest_ddtree.after_test",
    "pytest_ddtree.carrier",
]

MARKERS = (
    "bench: effective config, short exactness and speed of every config",
    "exactness: the output is still the target model's",
    "coding: the coding eval on final answers",
    "gpu: needs a GPU",
    "ddtree_speculative: of a test that requests `ddtree_server`: speculative configs only, not the baseline",
)


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("ddtree", "exactness, speed and coding eval of DFlash/DDTree servers")
    for option in options.OPTIONS:
        default = f" Default: {option.default}." if option.default is not None and not option.switch else ""
        # argparse formats help texts with %, and one bare sign kills `pytest --help` for everybody.
        text = (option.help + default + f" Ini: {option.ini}.").replace("%", "%%")
        if option.switch:
            group.addoption(
                option.flag, dest=option.dest, action="store_const", const="true", default=None, help=text
            )
        elif option.repeatable:
            group.addoption(
                option.flag,
                dest=option.dest,
                action="append",
                default=None,
                metavar=option.metavar,
                help=text,
            )
        else:
            group.addoption(option.flag, dest=option.dest, default=None, metavar=option.metavar, help=text)
        words = f"{option.help}{default} See {option.flag}."
        if option.repeatable:
            parser.addini(option.ini, help=words, type="linelist", default=None)
        else:
            parser.addini(option.ini, help=words, type="string", default=None)


def pytest_addhooks(pluginmanager: pytest.PytestPluginManager) -> None:
    pluginmanager.add_hookspecs(hookspecs)


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    for marker in MARKERS:
        config.addinivalue_line("markers", marker)
    config.stash[BEGAN] = time.monotonic()
    given = config.stash[GIVEN] = given_of(config)
    try:
        config.stash[SETTINGS] = options.make_settings(given)
    except options.OptionError as error:
        raise pytest.UsageError(str(error)) from None
    if config.stash[SETTINGS].axis:
        from pytest_ddtree.server_axes import make_axes

        try:
            make_axes(config.stash[SETTINGS])
        except options.OptionError as error:
            raise pytest.UsageError(str(error)) from None
    if config.stash[SETTINGS].where is not None:
        grid_of(config)  # a constraint that cannot be read, or that leaves nothing, is refused now
    _refuse_lost_ini(config)
    _several_workers(config, given)
    if hasattr(config, "workerinput"):
        from pytest_ddtree.parallel import take_place

        take_place(config)
    settings = config.stash[SETTINGS]
    # trylast: registered after every other plugin, so that its tryfirst wrapper is the outermost one and sorts what is left when
    # --ff, --nf, --sw, pytest-randomly and pytest-reverse have had their say.
    config.pluginmanager.register(
        Sorter(
            compares=settings.expected is not None,
            builds=bool(settings.build),
            searches=settings.fuzz > 0,
            replays=settings.trace is not None,
            smoke=settings.profile == "smoke",
        ),
        "ddtree-sorter",
    )
    config.pluginmanager.register(Clock(config), "ddtree-clock")
    if settings.plan:
        config.pluginmanager.register(PlanOnly(), "ddtree-plan")
    if config.pluginmanager.hasplugin("pytest_jsonreport"):
        config.pluginmanager.register(JsonReport(config), "ddtree-json-report")


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> None:
    """pytest-benchmark's table shows how long a whole cell took, which looks like a result and is none: ours takes its place."""
    if asks_for_ours(config) and hasattr(config.option, "benchmark_quiet"):
        config.option.benchmark_quiet = True


INI_NAMES = ("pytest.toml", "pytest.ini", "pyproject.toml", "tox.ini", "setup.cfg")


def _refuse_lost_ini(config: pytest.Config) -> None:
    """pytest looks for its ini file before it knows our options, and takes the path behind `--ddtree-model` for a test path.

    The ini file beside the tests is then not found, and with it go markers, filters and our own settings, without a word.
    """
    if config.inipath is not None:
        return
    arguments = [str(argument) for argument in config.invocation_params.args]
    flags = {option.flag for option in options.OPTIONS if not option.switch}
    for flag, value in pairwise(arguments):
        if flag not in flags or value.startswith("-") or not (config.invocation_params.dir / value).exists():
            continue
        here = config.invocation_params.dir
        lost = next(
            (d / name for d in (here, *here.parents) for name in INI_NAMES if (d / name).is_file()), None
        )
        if lost is not None:
            raise pytest.UsageError(
                f"{flag} {value}: pytest took {value} for a test path and so did not read {lost}. "
                f"Write {flag}={value}, with an equals sign."
            )


def _several_workers(config: pytest.Config, given: dict[str, tuple[str, str]]) -> None:
    """Several workers would start several servers on one GPU. In runs that are not ours `-n` is none of our business."""
    workers = getattr(config.option, "numprocesses", None)
    settings = config.stash[SETTINGS]
    asked = asks_for_ours(config) or any(source == "command line" for _, source in given.values())
    if not workers:
        if asked and len(settings.gpu_groups) > 1 and not hasattr(config, "workerinput"):
            count = len(settings.gpu_groups)
            raise pytest.UsageError(
                f"--ddtree-gpu-groups has {count} groups: run with -n {count} (pytest-xdist)"
            )
        return
    if not asked:
        return
    from pytest_ddtree import parallel

    if (why := parallel.refusal(settings, workers)) is not None:
        raise pytest.UsageError(why)
    config.pluginmanager.register(parallel.Controller(config, parallel.new_name()), "ddtree-controller")


def _configs(metafunc: pytest.Metafunc) -> tuple[grids.Config, ...]:
    """The configs that a test runs on: under the values of `--ddtree-axis` only what proves exactness is repeated."""
    proves = metafunc.definition.get_closest_marker("exactness") is not None
    others = {CELL_FIXTURE, PROBLEM_FIXTURE, BUILDS_FIXTURE}.intersection(metafunc.fixturenames)
    return judged_configs(metafunc.config) if proves and not others else grid_of(metafunc.config)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if SERVER_FIXTURE in metafunc.fixturenames:
        configs = _configs(metafunc)
        marked = metafunc.definition.get_closest_marker("ddtree_speculative")
        if marked is None and settings_of(metafunc.config).has_baseline:
            configs = (grids.BASELINE, *configs)
        metafunc.parametrize(
            SERVER_FIXTURE, configs, ids=[config.id for config in configs], indirect=True, scope="session"
        )
    elif CONFIG_FIXTURE in metafunc.fixturenames:
        configs = _configs(metafunc)
        metafunc.parametrize(CONFIG_FIXTURE, configs, ids=[config.id for config in configs], indirect=True)
    if CLAUSE_FIXTURE in metafunc.fixturenames:
        from pytest_ddtree.exactness.contract.catalogue import CONTRACT

        short = {name for name, clause in CONTRACT.items() if clause.short}
        clauses = [
            pytest.param(c, id=n, marks=[pytest.mark.bench] if n in short else [])
            for n, c in CONTRACT.items()
        ]
        metafunc.parametrize(CLAUSE_FIXTURE, clauses, indirect=True)
    if PROBLEM_FIXTURE in metafunc.fixturenames:
        problems = problems_of(metafunc.config)
        metafunc.parametrize(
            PROBLEM_FIXTURE, problems, ids=[problem.task_id for problem in problems], indirect=True
        )
    if CELL_FIXTURE in metafunc.fixturenames:
        cells = cells_in(metafunc.config)
        metafunc.parametrize(CELL_FIXTURE, cells, ids=[cell.id for cell in cells], indirect=True)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_finish(session: pytest.Session) -> None:
    """Derive from the selected items what the baseline has to provide, and check the options against the model's own config."""
    ours = [item for item in session.items if is_ours(item)]
    if PROBLEM_FAULTS in session.config.stash and any(PROBLEM_FIXTURE in fixtures_of(item) for item in ours):
        raise pytest.UsageError(session.config.stash[PROBLEM_FAULTS])
    if CELL_FAULT in session.config.stash and any(CELL_FIXTURE in fixtures_of(item) for item in ours):
        raise pytest.UsageError(session.config.stash[CELL_FAULT])
    if not ours or session.config.option.collectonly:
        return
    from pytest_ddtree.gating import gate_options
    from pytest_ddtree.impossible import set_aside
    from pytest_ddtree.model_files import check_grid, check_paths, model_facts
    from pytest_ddtree.outputs import check_outputs
    from pytest_ddtree.results.builds import BuildError, check_revisions, parse_builds
    from pytest_ddtree.results.expected import ExpectedBroken, read_expected
    from pytest_ddtree.results.gate_setup import make_policy
    from pytest_ddtree.results.resume import ResumeRefused
    from pytest_ddtree.results.runs import NoSuchRun
    from pytest_ddtree.results.store import StoreCorrupt
    from pytest_ddtree.search_options import check_search
    from pytest_ddtree.workload.choice import Makers

    config = session.config
    settings, configs = settings_of(config), grid_of(config)
    names = ["baseline", *(one.id for one in configs)]
    try:
        check_paths(settings)
        check_outputs(settings)
        check_search(settings)
        facts = model_facts(settings)
        check_grid(settings, configs, facts)
        if facts.target is not None:
            config.stash[MAKERS] = Makers(settings, facts.target)
            config.stash[MAKERS].check_contexts()
        policy = make_policy(gate_options(settings), names, cells_in(config), config.invocation_params.args)
        config.stash[POLICY] = policy
        if settings.expected is not None:
            read_expected(settings.expected)
        config.stash[PLAN] = plan_of(ours)
        config.stash[BUDGET] = Budget(settings.time_budget)
        if settings.build:
            check_revisions(parse_builds(settings.build, settings.sglang_src), settings.sglang_src)
        if settings.resume is not None and not config.option.setupplan:
            run_of(config).resume(settings.resume)
        if not (config.option.setupplan or settings.plan or settings.build or settings.server == "url"):
            config.stash[IMPOSSIBLE] = set_aside(run_of(config), ours)
    except BuildError as error:
        raise pytest.UsageError(f"--ddtree-build: {error}") from None
    except ExpectedBroken as error:
        raise pytest.UsageError(f"--ddtree-expected: {error}") from None
    except (ResumeRefused, NoSuchRun, StoreCorrupt) as error:
        raise pytest.UsageError(f"--ddtree-resume {settings.resume}: {error}") from None
    except options.OptionError as error:
        raise pytest.UsageError(str(error)) from None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A failure is a verdict, an error is infrastructure: what our code raises as infrastructure during the call is an error.

    pytest calls whatever is raised in a test's body a failure. The report is moved to the phase `setup`, which is what terminal,
    JUnit XML and json-report go by.
    """
    report = yield
    if call.when == "call" and call.excinfo is not None and isinstance(call.excinfo.value, Infrastructure):
        report.when = "setup"
        report.longrepr = f"{type(call.excinfo.value).__name__}: {call.excinfo.value}"
    if is_ours(item):
        from pytest_ddtree.results.secrets import scrub_report

        scrub_report(report, _secrets(item.config))
    return report


def _secrets(config: pytest.Config) -> tuple[str, ...]:
    """What must not be seen in any report."""
    from pytest_ddtree.results.secrets import known_secrets

    return known_secrets(settings_of(config).api_key, os.environ)


def pytest_report_header(config: pytest.Config) -> str | None:
    settings = settings_of(config)
    if not config.stash[GIVEN] and not asks_for_ours(config):
        return None
    where = ", ".join(settings.url) or settings.model or "embedded reference model"
    configs = ", ".join(one.id for one in grid_of(config))
    dropped = config.stash.get(DROPPED, ())
    left_out = (
        f"; not in the grid (--ddtree-where): {', '.join(one.id for one in dropped)}" if dropped else ""
    )
    return f"ddtree: server {settings.server} ({where}), configs {configs}{left_out}"


def pytest_report_collectionfinish(config: pytest.Config) -> list[str]:
    return [f"ddtree: {line}" for line in config.stash.get(IMPOSSIBLE, [])]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    config = terminalreporter.config
    if AB in config.stash:
        terminalreporter.section("ddtree: builds")
        for outcome in config.stash[AB].outcomes.values():
            for line in outcome.lines():
                terminalreporter.write_line(line)
        terminalreporter.write_line(f"results: {config.stash[AB].folder}")
    run, settings = reported_of(config), settings_of(config)
    if run is None or hasattr(config, "workerinput") or run.results.empty or settings.plan:
        return
    from pytest_ddtree.report import github, html
    from pytest_ddtree.report.findings import findings
    from pytest_ddtree.report.terminal import lines
    from pytest_ddtree.results.secrets import scrub

    secrets = _secrets(config)
    terminalreporter.section("ddtree")
    for line in scrub(lines(run.results), secrets):
        terminalreporter.write_line(line)
    terminalreporter.write_line(f"results: {run.run_dir}")
    report = run.report()
    if settings.html is not None:
        try:
            settings.html.parent.mkdir(parents=True, exist_ok=True)
            settings.html.write_text(scrub(html.page(report), secrets), "utf-8")
            terminalreporter.write_line(f"HTML report: {settings.html}")
        except OSError as error:
            again = f"pytest-ddtree export {run.run_dir} --format html -o FILE writes it again"
            terminalreporter.write_line(f"HTML report: not written: {error}; {again}", red=True)
    try:
        summary = github.write_summary(report, secrets=secrets)
    except OSError as error:
        summary = None
        terminalreporter.write_line(f"GITHUB_STEP_SUMMARY: not written: {error}", red=True)
    if summary is not None or os.environ.get("GITHUB_ACTIONS") == "true":
        # A workflow command counts only at the beginning of a line.
        for line in scrub(github.commands(findings(run.results)), secrets):
            terminalreporter.write_line(line)


class JsonReport:
    """Adds metrics, verdicts and environment to the report of pytest-json-report."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config

    @pytest.hookimpl(optionalhook=True)
    def pytest_json_modifyreport(self, json_report: dict[str, Any]) -> None:
        if PLAN not in self._config.stash:
            return
        from pytest_ddtree.report import jsonreport

        secrets, run = _secrets(self._config), reported_of(self._config)
        if run is None:
            jsonreport.clean(json_report, secrets=secrets, environment=os.environ)
        else:
            jsonreport.enrich(json_report, run.report(), secrets=secrets, environment=os.environ)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> None:
    """A session that was told to end does not begin another test."""
    leave(item.config)


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Conclude before the tables are printed; the servers are stopped after them.

    A real server takes seconds to stop, and an impatient Ctrl-C in that time must not cost the results.
    """
    config = session.config
    if RUN in config.stash:
        config.stash[RUN].conclude()
        if session.exitstatus == pytest.ExitCode.OK and config.stash[RUN].results.corrupt:
            # No selection makes a corrupt server green, whatever the selected tests look at.
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
        if PLACE in config.stash:
            # Once a worker has said that it is done it has seconds to end, and a real server takes longer to stop.
            config.stash[RUN].close()
    if INTERRUPTED in config.stash:
        session.exitstatus = config.stash[INTERRUPTED]
