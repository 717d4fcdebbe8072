"""The pytest plugin: options in, markers, ordering, reports out. Everything heavy is imported when a test of ours runs."""

from __future__ import annotations

import time
from collections.abc import Generator

import pytest

from pytest_ddtree import grid as grids
from pytest_ddtree import hookspecs, options
from pytest_ddtree.asked import asks_for_ours, given_of
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
)
from pytest_ddtree.lost_ini import refuse_lost_ini
from pytest_ddtree.no_suites import refuse_empty_suites
from pytest_ddtree.session import (
    BEGAN,
    CELL_FAULT,
    DROPPED,
    GIVEN,
    IMPOSSIBLE,
    INTERRUPTED,
    PLACE,
    PROBLEM_FAULTS,
    RUN,
    SETTINGS,
    cells_in,
    grid_of,
    judged_configs,
    leave,
    problems_of,
    settings_of,
)

pytest_plugins = [
    "pytest_ddtree.fixtures",
    "pytest_ddtree.exactness_fixtures",
    "pytest_ddtree.after_test",
    "pytest_ddtree.ending",
    "pytest_ddtree.failing",
    "pytest_ddtree.junit",
    "pytest_ddtree.keeping",
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
    refuse_lost_ini(config)
    refuse_empty_suites(config)
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
        from pytest_ddtree.session_reports import JsonReport

        config.pluginmanager.register(JsonReport(config), "ddtree-json-report")


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> None:
    """pytest-benchmark's table shows how long a whole cell took, which looks like a result and is none: ours takes its place."""
    if asks_for_ours(config) and hasattr(config.option, "benchmark_quiet"):
        config.option.benchmark_quiet = True


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
    try:
        _check_selected(session)
    except pytest.UsageError as error:
        if hasattr(session.config, "workerinput"):
            from pytest_ddtree.parallel import tell_refusal

            tell_refusal(session.config, str(error))
        raise


def _check_selected(session: pytest.Session) -> None:
    config = session.config
    ours = [item for item in session.items if is_ours(item)]
    for key, fixture in ((PROBLEM_FAULTS, PROBLEM_FIXTURE), (CELL_FAULT, CELL_FIXTURE)):
        if key in config.stash and any(fixture in fixtures_of(item) for item in ours):
            raise pytest.UsageError(config.stash[key])
    if not ours or config.option.collectonly:
        return
    from pytest_ddtree.before_start import check_session

    check_session(config, ours)


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
        from pytest_ddtree.repeated import shorten
        from pytest_ddtree.results.secrets import scrub_report
        from pytest_ddtree.session_reports import secrets_of

        shorten(report, item.config)
        scrub_report(report, secrets_of(item.config))
    return report


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
    sorter = config.pluginmanager.get_plugin("ddtree-sorter")
    left_out = sorter.left_out() if isinstance(sorter, Sorter) else []
    return [f"ddtree: {line}" for line in (*config.stash.get(IMPOSSIBLE, []), *left_out)]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    from pytest_ddtree.session_reports import summarise

    summarise(terminalreporter)


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
        run = config.stash[RUN]
        run.conclude()
        if session.exitstatus == pytest.ExitCode.OK and (
            run.results.corrupt or run.file.lost or run.file.unwritten
        ):
            # No selection makes a corrupt server green, whatever the selected tests look at; nor is all well with results that are lost.
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
        if PLACE in config.stash:
            # Once a worker has said that it is done it has seconds to end, and a real server takes longer to stop.
            config.stash[RUN].close()
    if INTERRUPTED in config.stash:
        session.exitstatus = config.stash[INTERRUPTED]
