"""What the plugin does before anything runs: ids, order, refusals; and that it does nothing in other people's runs."""

from __future__ import annotations

import pytest

from pytest_ddtree.options import OPTIONS


def collected(result: pytest.RunResult) -> list[str]:
    return [line.split("::")[1] for line in result.outlines if "::" in line]


def test_ids_name_config_and_cell(project: pytest.Pytester) -> None:
    result = project.runpytest_inprocess(
        "--collect-only",
        "-q",
        "-m",
        "bench",
        "--ddtree-budget",
        "chain,8",
        "--ddtree-window",
        "none,2048",
        "--ddtree-context",
        "1024",
        "--ddtree-concurrency",
        "8",
    )
    assert result.ret == 0
    assert set(collected(result)) == {
        *(
            f"test_every_config[{c}]"
            for c in ("baseline", "chain-wnone", "b8-k4-wnone", "chain-w2048", "b8-k4-w2048")
        ),
        *(f"test_speculative[{c}]" for c in ("chain-wnone", "b8-k4-wnone", "chain-w2048", "b8-k4-w2048")),
        *(
            f"test_cell[{c}-ctx1024-c8]"
            for c in ("baseline", "chain-wnone", "b8-k4-wnone", "chain-w2048", "b8-k4-w2048")
        ),
    }


@pytest.mark.parametrize(
    "flags", [[], ["--ff"], ["--nf"], ["--sw"], ["-p", "randomly_stand_in"]], ids=" ".join
)
def test_items_are_grouped_by_config_baseline_first_whatever_else_reorders(
    project: pytest.Pytester, flags: list[str]
) -> None:
    project.syspathinsert()
    project.makepyfile(
        randomly_stand_in="""
        import random

        def pytest_collection_modifyitems(items):
            random.Random(3).shuffle(items)
        """
    )
    project.makeini("[pytest]\nasyncio_default_fixture_loop_scope = session\n")
    result = project.runpytest_inprocess(
        "--collect-only",
        "-q",
        "-m",
        "bench",
        "--ddtree-budget",
        "16,8",
        "--ddtree-context",
        "64",
        "--ddtree-concurrency",
        "1",
        *flags,
    )
    configs = [name.split("[")[1].split("-")[0].rstrip("]") for name in collected(result)]
    assert configs == sorted(configs, key=["baseline", "b8", "b16"].index), result.stdout.str()
    assert len(configs) == 8


def test_nothing_starts_at_collection(project: pytest.Pytester) -> None:
    for flags in (["--collect-only"], ["--setup-plan"]):
        result = project.runpytest_inprocess(*flags, "-m", "bench")
        assert result.ret == 0
        assert not (project.path / ".ddtree").exists()


def said(result: pytest.RunResult) -> str:
    """What a run said, but for its plugins and for where this machine keeps things."""
    return "\n".join(line for line in result.outlines if not line.startswith(("plugins:", "rootdir:")))


def test_other_peoples_runs_are_left_alone(pytester: pytest.Pytester) -> None:
    pytester.makeini("[pytest]\nasyncio_default_fixture_loop_scope = session\n")
    pytester.makepyfile(
        """
        import sys

        def test_light():
            heavy = {"httpx", "numpy", "scipy", "pytest_ddtree.run", "pytest_ddtree.servers.pool", "pytest_ddtree.client.client"}
            assert not heavy & set(sys.modules)
        """
    )
    result = pytester.runpytest_subprocess(
        "--fixtures-per-test", "-p", "no:asyncio", "-p", "no:benchmark", "-p", "no:hypothesispytest"
    )
    assert "ddtree" not in said(result)
    result = pytester.runpytest_subprocess(
        "-p", "no:asyncio", "-p", "no:benchmark", "-p", "no:hypothesispytest"
    )
    result.assert_outcomes(passed=1)
    assert "ddtree" not in said(result)
    assert not (pytester.path / ".ddtree").exists()


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--ddtree-budget", "0"], ["--ddtree-budget", "'0'", "from 1 to 4096"]),
        (["--ddtree-context", ""], ["--ddtree-context", "is empty"]),
        (["--ddtree-topk", "4,4"], ["--ddtree-topk", "twice"]),
        (["--ddtree-server", "vllm"], ["--ddtree-server", "sglang"]),
    ],
    ids=["budget 0", "empty list", "duplicate", "unknown kind"],
)
def test_a_wrong_value_is_a_usage_error(project: pytest.Pytester, flags: list[str], words: list[str]) -> None:
    result = project.runpytest_inprocess(*flags)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    for word in words:
        assert word in result.stderr.str()


def test_a_wrong_ini_value_names_key_and_file(project: pytest.Pytester) -> None:
    project.makeini("[pytest]\nddtree_topk = none\nasyncio_default_fixture_loop_scope = session\n")
    result = project.runpytest_inprocess()
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert "ddtree_topk in" in result.stderr.str()
    assert "tox.ini" in result.stderr.str()


def test_the_command_line_wins_over_the_ini_file(project: pytest.Pytester) -> None:
    project.makeini(
        "[pytest]\nddtree_budget = 32\nddtree_topk = 2\nasyncio_default_fixture_loop_scope = session\n"
    )
    result = project.runpytest_inprocess("--collect-only", "-q", "-k", "speculative", "--ddtree-budget", "4")
    assert collected(result) == ["test_speculative[b4-k2-wnone]"]


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--ddtree-topk", "4096", "--ddtree-budget", "8"], None),
        (["--ddtree-window", "4"], ["--ddtree-window 4", "block size is 8"]),
        (["--ddtree-context", "20000"], ["--ddtree-context 20000", "16384"]),
        (
            ["--ddtree-exactness-output", "16384"],
            ["--ddtree-exactness-output 16384: no prompt has room", "16384"],
        ),
        (["--ddtree-context", "3"], ["--ddtree-context 3", "at least"]),
        (["--ddtree-model=/no/such/model"], ["--ddtree-model /no/such/model", "no such directory"]),
    ],
    ids=[
        "topk as large as the vocabulary",
        "window below the block size",
        "context beyond the model",
        "answers beyond the model",
        "context below the template",
        "no model",
    ],
)
def test_options_are_checked_against_the_model_before_a_server_starts(
    project: pytest.Pytester, flags: list[str], words: list[str] | None
) -> None:
    result = project.runpytest_inprocess("-m", "bench", "--setup-plan", *flags)
    if words is None:
        assert result.ret == 0
        return
    assert result.ret == pytest.ExitCode.USAGE_ERROR, result.stdout.str()
    for word in words:
        assert word in result.stderr.str() + result.stdout.str()
    assert not (project.path / ".ddtree").exists()


def test_several_workers_are_refused_for_a_managed_server(project: pytest.Pytester) -> None:
    pytest.importorskip("xdist")
    result = project.runpytest_inprocess("-n", "2", "-m", "bench")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert "--ddtree-url" in result.stderr.str()


def test_a_hook_can_replace_the_grid(project: pytest.Pytester) -> None:
    project.makeconftest(
        """
        from pytest_ddtree.grid import Config

        def pytest_ddtree_grid(settings):
            return (Config("tree", 5, 2),)
        """
    )
    result = project.runpytest_inprocess("--collect-only", "-q", "-k", "speculative")
    assert collected(result) == ["test_speculative[b5-k2-wnone]"]


def test_a_path_that_hides_the_ini_file_is_refused(project: pytest.Pytester) -> None:
    """pytest reads `--ddtree-model DIR` as a test path while it looks for its ini file."""
    model = project.path.parent / "model"
    model.mkdir()
    result = project.runpytest_inprocess(
        "--collect-only", "-q", "-p", "no:asyncio", "--ddtree-model", str(model)
    )
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert f"--ddtree-model={model}" in result.stderr.str()
    assert project.runpytest_inprocess("--collect-only", "-q", f"--ddtree-model={model}").ret == 0


def test_help_lists_every_option_with_its_ini_key(pytester: pytest.Pytester) -> None:
    pytester.makeini("[pytest]\nasyncio_default_fixture_loop_scope = session\n")
    result = pytester.runpytest_inprocess("--help")
    assert result.ret == 0
    shown = result.stdout.str()
    for option in OPTIONS:
        assert option.flag in shown
        assert option.ini in shown


def test_a_constraint_drops_configs_and_lists_them(project: pytest.Pytester) -> None:
    flags = ("--ddtree-budget", "2,8", "--ddtree-topk", "1,4", "--ddtree-where", "topk <= budget")
    result = project.runpytest_inprocess("--collect-only", "-q", "-k", "speculative", *flags)
    assert collected(result) == [f"test_speculative[{c}-wnone]" for c in ("b2-k1", "b8-k1", "b8-k4")]
    assert (
        "not in the grid (--ddtree-where): b2-k4-wnone"
        in project.runpytest_inprocess("--collect-only", *flags).stdout.str()
    )


@pytest.mark.parametrize(
    "constraint", ["topk <", "budget > 100", "__import__('os')"], ids=["unfinished", "leaves nothing", "code"]
)
def test_a_constraint_that_cannot_be_is_refused(project: pytest.Pytester, constraint: str) -> None:
    result = project.runpytest_inprocess("--collect-only", "--ddtree-where", constraint)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert "--ddtree-where" in result.stderr.str()


def test_the_smoke_profile_names_what_it_leaves_out(project: pytest.Pytester) -> None:
    project.makepyfile(
        test_clauses="""
        import pytest

        @pytest.mark.exactness
        def test_contract(ddtree_clause):
            pass
        """
    )
    result = project.runpytest_inprocess(
        "--collect-only", "-m", "exactness", "--ddtree-budget=8", "--ddtree-profile=smoke"
    )
    result.stdout.fnmatch_lines(
        ["ddtree: --ddtree-profile smoke leaves out * of what was selected: *stop-strings*"]
    )
    assert "test_contract[serial]" in result.stdout.str()
    assert "test_contract[stop-strings]" not in result.stdout.str()


def test_a_comparison_of_builds_names_what_it_leaves_out(project: pytest.Pytester) -> None:
    """Nobody should take its silence for a contract that was kept, or an eval that was solved."""
    project.makepyfile(
        test_parts="""
        import pytest

        @pytest.mark.exactness
        def test_contract(ddtree_clause):
            pass

        @pytest.mark.coding
        def test_problem(ddtree_problem):
            pass

        @pytest.mark.exactness
        def test_builds(ddtree_config, ddtree_ab):
            pass
        """
    )
    builds = ("--ddtree-budget=8", "--ddtree-build=base=args:", "--ddtree-build=other=args:")
    both = project.runpytest_inprocess("--collect-only", "-m", "exactness or coding", *builds)
    both.stdout.fnmatch_lines(
        [
            "ddtree: --ddtree-build compares * leaves out *: 28 clauses of the contract and 60 coding problems; *"
        ]
    )
    assert "test_builds[" in both.stdout.str()
    alone = project.runpytest_inprocess("--collect-only", "-k", "test_builds", *builds)
    assert "leaves out" not in alone.stdout.str()


def test_suites_that_are_not_in_the_package_are_refused_by_the_folders_to_use(
    project: pytest.Pytester,
) -> None:
    """This checkout is installed in place, as `make` does it."""
    result = project.runpytest_inprocess("--pyargs", "pytest_ddtree.suites", "-m", "bench")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*installed in place*bench*evals*"])
