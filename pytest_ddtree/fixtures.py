"""The public fixtures. Thin: they hand on what `Run` does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import pytest

from pytest_ddtree.errors import Infrastructure
from pytest_ddtree.items import cell_of, config_of

if TYPE_CHECKING:
    from pytest_ddtree.ab_outcome import AbOutcome
    from pytest_ddtree.baselines import Baseline
    from pytest_ddtree.client.client import AsyncClient
    from pytest_ddtree.client.sync import Client
    from pytest_ddtree.coding.counters import Counter
    from pytest_ddtree.coding.problems import Problem
    from pytest_ddtree.coding.sampled import SampledComparison
    from pytest_ddtree.coding.stats import Comparison
    from pytest_ddtree.coding_eval import Solve
    from pytest_ddtree.dialects.effective import Mismatch
    from pytest_ddtree.drifting import DriftOutcome
    from pytest_ddtree.exactness.contract.catalogue import Clause
    from pytest_ddtree.exactness.contract.evidence import Evidence
    from pytest_ddtree.exactness.verdict import Verdict
    from pytest_ddtree.grid import CellKey, Config
    from pytest_ddtree.options import Settings
    from pytest_ddtree.results.gatekeeper import CellOutcome
    from pytest_ddtree.results.model import CellFigures
    from pytest_ddtree.run import Run
    from pytest_ddtree.servers.handle import Server
    from pytest_ddtree.windows import Probed


@pytest.fixture(scope="session")
def ddtree_settings(pytestconfig: pytest.Config) -> Settings:
    """What the options and the ini file say, with every default resolved."""
    from pytest_ddtree.session import settings_of

    return settings_of(pytestconfig)


@pytest.fixture(scope="session")
def ddtree_run(pytestconfig: pytest.Config) -> Run:
    """Everything that a session shares: the pool of servers, baseline answers, verdicts, figures."""
    from pytest_ddtree.session import run_of

    return run_of(pytestconfig)


@pytest.fixture(scope="session")
def ddtree_server(request: pytest.FixtureRequest, ddtree_run: Run) -> Server:
    """The server of one config, started when its first test asks for it.

    The only parametrized fixture of high scope: pytest groups tests by it, and the plugin sorts by it. Yields a stable handle; the
    process behind it may be replaced. What goes wrong here is an error of the test, never a failure.
    """
    try:
        return ddtree_run.server(request.param)
    except Infrastructure as error:
        said = str(error)
    pytest.fail(said, pytrace=False)


@pytest.fixture
def ddtree_config(request: pytest.FixtureRequest) -> Config:
    """A speculative config without its server: for tests that judge what was recorded."""
    config: Config = request.param
    return config


@pytest.fixture
def ddtree_cell(request: pytest.FixtureRequest) -> CellKey:
    """One cell of the matrix: context, concurrency, workload class, temperature."""
    cell: CellKey = request.param
    return cell


@pytest.fixture(scope="session")
def ddtree_baseline(ddtree_run: Run) -> Baseline:
    """The non-speculative server's recorded answers and a lazy scorer; not a process."""
    return ddtree_run.verifier.baseline


@pytest.fixture
def ddtree_client(ddtree_server: Server, ddtree_run: Run) -> Client:
    """A synchronous client of the test's server."""
    return ddtree_run.client(ddtree_server)


@pytest.fixture
def ddtree_async_client(ddtree_server: Server, ddtree_run: Run) -> AsyncClient:
    """A client for tests of pytest-asyncio; use it in one event loop."""
    return ddtree_run.async_client(ddtree_server)


@pytest.fixture
def ddtree_mismatches() -> Callable[[Server], Sequence[Mismatch]]:
    """Compares what a server runs with what was asked."""
    return lambda server: server.mismatches()


@pytest.fixture
def ddtree_verdict(ddtree_run: Run) -> Callable[[Config], Verdict]:
    """The verdict on a config; made on first use, then remembered."""
    return ddtree_run.verify


@pytest.fixture
def ddtree_explain(ddtree_run: Run) -> Callable[[Config, Verdict], str]:
    """The report of a verdict that did not pass: the worst tokens in their text, with the judge's candidates."""
    return ddtree_run.explainer.explain


@pytest.fixture
def ddtree_measure(request: pytest.FixtureRequest, ddtree_run: Run) -> Callable[[CellKey], CellFigures]:
    """Measures a cell on the test's server; the config is verified first, whatever was selected.

    Raises nothing for a corrupt config: the test fails, or is skipped when an exactness test of that config is selected too.
    """
    config = config_of(request.node)
    if config is None:
        raise pytest.UsageError(
            f"{request.node.nodeid}: ddtree_measure goes with ddtree_server, which says on which config to measure"
        )
    if cell_of(request.node) is not None:
        request.getfixturevalue("ddtree_server")

    def measure(key: CellKey) -> CellFigures:
        from pytest_ddtree.measuring import NO_STEPS
        from pytest_ddtree.speed import Infeasible

        if config.speculative:
            mismatches = ddtree_run.mismatches(config)
            if mismatches:
                pytest.fail(
                    f"this is not {config.id}, so its speed is not either: "
                    + "; ".join(map(str, mismatches)),
                    pytrace=False,
                )
            ddtree_run.verify(config)
            # Any verdict of the session counts, a clause's too.
            verdict = ddtree_run.results.verdict(config.id)
            if verdict is not None and not verdict.passed:
                reasons = "; ".join(verdict.reasons)
                text = f"{config.id} is {verdict.kind}, so its speed says nothing. {verdict.summary()}: {reasons}"
                if config in ddtree_run.plan.exactness:
                    pytest.skip(text)
                pytest.fail(text, pytrace=False)
        try:
            figures = ddtree_run.measure(config, key)
        except Infeasible as reason:
            pytest.skip(f"{reason.kind}: {reason}")
        if config.speculative and figures.accept_length is None:
            pytest.fail(f"{config.id}: {NO_STEPS}", pytrace=False)
        return figures

    return measure


@pytest.fixture
def ddtree_gate(request: pytest.FixtureRequest, ddtree_run: Run) -> Callable[[CellFigures], None]:
    """Compares the figures of a cell with the expected ones and with the thresholds; a regression fails the test.

    Inside the test, so that -x, --lf and JUnit see it. A missing metric is an error, never a pass.
    """
    config = config_of(request.node)

    def gate(figures: CellFigures) -> None:
        from pytest_ddtree.errors import NotVerified
        from pytest_ddtree.report import jsonreport
        from pytest_ddtree.session import GATED

        if config is None:
            raise pytest.UsageError(f"{request.node.nodeid}: ddtree_gate goes with ddtree_server")
        outcome = ddtree_run.gating.gate(config, figures)
        gates = [one.as_json() for one in outcome.gates]
        request.node.user_properties.extend(jsonreport.properties(figures, gates))
        request.node.stash[GATED] = figures, gates
        if outcome.failures:
            pytest.fail("\n".join(outcome.failures), pytrace=False)
        if outcome.errors:
            raise NotVerified("\n".join(outcome.errors))

    return gate


@pytest.fixture
def ddtree_together(ddtree_run: Run) -> CellOutcome:
    """The gate over all measured cells together."""
    return ddtree_run.gating.together()


@pytest.fixture
def ddtree_drift(ddtree_run: Run) -> DriftOutcome:
    """What the machine did during a sweep: the baseline at the end against the baseline at the beginning."""
    from pytest_ddtree.drifting import measure_drift

    return measure_drift(ddtree_run)


@pytest.fixture
def ddtree_ab(request: pytest.FixtureRequest) -> Callable[[Config], AbOutcome]:
    """Compares the builds of `--ddtree-build` on a config, A B B A: exactness of each, and ratios of speed.

    Raises NotVerified where a build looks worse and there was no time to confirm it.
    """
    from pytest_ddtree.errors import NotVerified
    from pytest_ddtree.session import ab_of

    def compared(config: Config) -> AbOutcome:
        outcome = ab_of(request.config).outcome(config)
        request.node.user_properties.extend(outcome.properties)
        if outcome.unconfirmed and not outcome.failures:
            raise NotVerified("\n".join([*outcome.unconfirmed, *outcome.lines()]))
        return outcome

    return compared


@pytest.fixture
def ddtree_window(ddtree_run: Run) -> Callable[[Config], Probed]:
    """Probes whether the draft window of a config acts; of tests that request it only those with a window are run."""
    return ddtree_run.windows.judge


@pytest.fixture
def ddtree_clause(request: pytest.FixtureRequest) -> Clause:
    """One clause of the exactness contract."""
    clause: Clause = request.param
    return clause


@pytest.fixture
def ddtree_contract(ddtree_run: Run) -> Callable[[Config, Clause], tuple[Evidence, Verdict | None]]:
    """Carries out a clause of the contract on a config: what it found by itself, and the verdict on its answers."""
    return ddtree_run.contract.carry_out


@pytest.fixture
def ddtree_rescore(ddtree_run: Run) -> Callable[[Config], Verdict]:
    """Level full for all that a config has answered, by a live baseline."""
    if not ddtree_run.has_baseline:
        pytest.skip("level full needs a non-speculative server: give --ddtree-baseline-url URL")
    return ddtree_run.verifier.rescore


@pytest.fixture
def ddtree_problem(request: pytest.FixtureRequest) -> Problem:
    """One coding problem."""
    problem: Problem = request.param
    return problem


@pytest.fixture
def ddtree_solve(ddtree_server: Server, ddtree_run: Run) -> Solve:
    """The pair of answers to a problem, the baseline's and that of the test's server, graded and judged.

    All problems of the selected tests are asked at once, the first time. With a temperature, a pair of samples.

    Problems of your own are part of no comparison. Where one server fits at a time, parametrize the test with them
    (`@pytest.mark.parametrize("problem", MINE)`): the baseline answers all of them before a config takes its place, and no start is
    lost. Give problems that only the test knows all at once: `for pair in ddtree_solve(problems)` makes the baseline come back once,
    which is two starts more; one after the other, each costs these two starts.
    """
    from pytest_ddtree.coding_eval import Solve

    return Solve(ddtree_run.coding, ddtree_server.config)


@pytest.fixture
def ddtree_coding_problems(ddtree_run: Run, pytestconfig: pytest.Config) -> tuple[Problem, ...]:
    """The problems of the selected tests; all of them where no selected test solves one."""
    from pytest_ddtree.session import problems_of

    return ddtree_run.plan.problems or problems_of(pytestconfig)


@pytest.fixture
def ddtree_coding_comparison(
    ddtree_run: Run, ddtree_coding_problems: tuple[Problem, ...]
) -> Callable[[Config], Comparison | SampledComparison]:
    """The paired comparison of a config with the baseline, over all problems of the selection."""
    return lambda config: ddtree_run.coding.comparison(config, ddtree_coding_problems)


@pytest.fixture
def ddtree_coding_counters(
    ddtree_run: Run, ddtree_coding_problems: tuple[Problem, ...]
) -> Callable[[Config], Sequence[Counter]]:
    """Truncated answers, missing code and time-outs of a config, compared with the baseline problem by problem."""
    return lambda config: ddtree_run.coding.counters(config, ddtree_coding_problems)


@pytest.fixture
def ddtree_coding_verdict(ddtree_run: Run) -> Callable[[Config], Verdict | str]:
    """The verdict on all answers of a config as one, at level full; a text says why there is none."""
    return ddtree_run.coding.verdict


@pytest.fixture
def ddtree_coding_too_long(
    ddtree_run: Run, ddtree_coding_problems: tuple[Problem, ...]
) -> Callable[[Config], Sequence[str]]:
    """Which answers of a config exceed a limit of a few tokens, in words."""
    return lambda config: ddtree_run.coding.too_long(config, ddtree_coding_problems)


@pytest.fixture
def ddtree_chat_prompt_tokens(ddtree_run: Run) -> Callable[[Config, Problem], tuple[int, int] | str]:
    """Prompt tokens of a problem as rendered here and as the chat endpoint counts them; a text says why not."""
    return ddtree_run.coding.chat_prompt_tokens


@pytest.fixture(scope="session")
def ddtree_tolerated(ddtree_settings: Settings) -> frozenset[str]:
    """The judgements on a pair of answers that pass: `--ddtree-strict` takes losses to rounding out."""
    from pytest_ddtree.coding.pairs import TOLERATED

    return frozenset({"fine"}) if ddtree_settings.strict else frozenset({"fine"}) | TOLERATED
