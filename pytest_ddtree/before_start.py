"""Everything that is checked once the tests are selected and before a server starts: what is wrong then costs no start."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from pytest_ddtree import options
from pytest_ddtree.ab_sharing import check_sharing
from pytest_ddtree.budget import Budget
from pytest_ddtree.gating import gate_options
from pytest_ddtree.impossible import check_setup, set_aside
from pytest_ddtree.items import plan_of
from pytest_ddtree.model_files import check_grid, check_paths, model_facts, no_tokenizer
from pytest_ddtree.outputs import check_outputs
from pytest_ddtree.results.builds import BuildError, check_revisions, parse_builds
from pytest_ddtree.results.expected_files import ExpectedBroken, read_expected
from pytest_ddtree.results.gate_setup import make_policy
from pytest_ddtree.results.resume import ResumeRefused
from pytest_ddtree.results.runs import NoSuchRun
from pytest_ddtree.results.store import StoreCorrupt
from pytest_ddtree.search_options import check_search
from pytest_ddtree.session import (
    BUDGET,
    IMPOSSIBLE,
    MAKERS,
    PLAN,
    POLICY,
    ab_of,
    cells_in,
    grid_of,
    run_of,
    settings_of,
)
from pytest_ddtree.workload.choice import Makers


def _makers(settings: options.Settings, target: Path) -> Makers:
    """The prompt makers, checked. Raises OptionError where tokenizer or chat template of the model cannot be used."""
    makers = Makers(settings, target)
    try:
        makers.check_contexts()
    except options.OptionError:
        raise
    except (ValueError, OSError) as error:
        raise options.OptionError(f"--ddtree-model {settings.model or target}: {error}") from None
    return makers


def check_session(config: pytest.Config, ours: Sequence[pytest.Item]) -> None:
    """Derive the plan of the selected tests of ours, and check the options against files, model, builds and earlier runs.

    Raises UsageError, saying what is wrong, where, and what to do.
    """
    settings, configs = settings_of(config), grid_of(config)
    names = ["baseline", *(one.id for one in configs)]
    try:
        plan = config.stash[PLAN] = plan_of(ours)
        check_paths(settings, prompts=bool(plan.cells or plan.judges or plan.windows))
        check_outputs(settings)
        check_search(settings)
        facts = model_facts(settings)
        check_grid(settings, configs, facts, coding=plan.solves)
        if facts.target is not None:
            config.stash[MAKERS] = _makers(settings, facts.target)
        policy = make_policy(gate_options(settings), names, cells_in(config), config.invocation_params.args)
        config.stash[POLICY] = policy
        if settings.expected is not None:
            read_expected(settings.expected)
        config.stash[BUDGET] = Budget(settings.time_budget)
        if settings.build:
            builds = parse_builds(settings.build, settings.sglang_src)
            check_sharing(settings, builds)
            check_revisions(builds, settings.sglang_src)
        if settings.resume is not None and not config.option.setupplan:
            run_of(config).resume(settings.resume)
        if not config.option.setupplan:
            check_setup(ab_of(config) if settings.build else run_of(config))
        if plan.judges and facts.target is None:
            raise options.OptionError(no_tokenizer(settings))
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
