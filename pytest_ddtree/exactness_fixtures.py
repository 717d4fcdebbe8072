"""Public fixtures of the exactness suite beyond verdicts and clauses. Thin: they hand on what `Run` does."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pytest_ddtree.client.records import Record
    from pytest_ddtree.exactness.relations import Relation
    from pytest_ddtree.exactness.sampling import Outside, SamplingVerdict
    from pytest_ddtree.exactness.verdict import Verdict
    from pytest_ddtree.grid import Config
    from pytest_ddtree.run import Run


@pytest.fixture
def ddtree_search(ddtree_run: Run) -> Callable[[Config], str | None]:
    """Runs `--ddtree-fuzz` schedules on a config; the report of the first that fails, else None."""
    from pytest_ddtree.searching import Searcher

    return Searcher(ddtree_run).search


@pytest.fixture
def ddtree_replay(ddtree_run: Run) -> Callable[[Config], str | None]:
    """Runs the schedule of `--ddtree-trace` once more on a config; why it fails, else None."""
    from pytest_ddtree.searching import Searcher

    path = ddtree_run.settings.trace
    if path is None:
        raise pytest.UsageError("ddtree_replay runs a saved schedule: name it with --ddtree-trace=FILE")
    searcher = Searcher(ddtree_run)
    return lambda config: searcher.replay(config, path)


@pytest.fixture
def ddtree_sampling(ddtree_run: Run) -> Callable[[Config], SamplingVerdict]:
    """Whether a config's answers at temperature 1 are samples from the baseline."""
    _needs_baseline(ddtree_run)
    return ddtree_run.sampled.verdict


@pytest.fixture
def ddtree_top_k(ddtree_run: Run) -> Callable[[Config], tuple[Outside, ...]]:
    """Tokens of a config's answers that the request's top_k should have made impossible."""
    _needs_baseline(ddtree_run)
    return ddtree_run.sampled.outside


def _needs_baseline(run: Run) -> None:
    if not run.has_baseline:
        pytest.skip("sampled answers are judged by a non-speculative server: give --ddtree-baseline-url URL")


@pytest.fixture
def ddtree_relations(ddtree_run: Run) -> tuple[Relation, ...]:
    """Every relation between the accept lengths of the grid's configs."""
    from pytest_ddtree.accepting import related

    return related(ddtree_run)


@pytest.fixture
def ddtree_verify(request: pytest.FixtureRequest, ddtree_run: Run) -> Callable[..., Verdict]:
    """`ddtree_verify(record, ...)`: fails the test with the report of the corruption unless these greedy answers are exact.

    The records are of the test's `ddtree_server`. Judged by a live baseline, else by the server's own prefill. An answer that
    cannot be judged is an error, never a pass. Gives the verdict.
    """
    from pytest_ddtree.items import config_of

    config = config_of(request.node)
    if config is None:
        raise pytest.UsageError(
            f"{request.node.nodeid}: ddtree_verify judges answers of ddtree_server: use both"
        )

    def verify(*records: Record) -> Verdict:
        from pytest_ddtree.errors import NotVerified
        from pytest_ddtree.judging import verify_records

        verdict = verify_records(ddtree_run, config, records)
        if verdict.kind == "unknown":
            raise NotVerified(f"{config.id}: unknown, which is no pass: {'; '.join(verdict.reasons)}")
        if not verdict.passed:
            pytest.fail(ddtree_run.explainer.explain(config, verdict), pytrace=False)
        return verdict

    return verify
