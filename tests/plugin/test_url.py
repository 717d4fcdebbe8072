"""Servers that somebody else runs: nothing is started or stopped, and the config that runs is the one that was asked."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from running import DRAFT, MODEL, TREE, Running
from suite import SMALL, run


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Running, Running]]:
    folder = tmp_path_factory.mktemp("servers")
    with ExitStack() as stack:
        baseline = Running(folder / "baseline.log")
        stack.callback(baseline.stop)
        tree = Running(folder / "tree.log", *TREE, *DRAFT)
        stack.callback(tree.stop)
        yield baseline, tree


@pytest.mark.slow
def test_two_urls_give_the_whole_main_job(servers: tuple[Running, Running], tmp_path: Path) -> None:
    baseline, tree = servers
    urls = (f"--ddtree-url={tree.url}", f"--ddtree-baseline-url={baseline.url}")
    outcome = run(
        "-m", "bench", *urls, f"--ddtree-model={MODEL}", *SMALL, "--ddtree-turnovers", "1", results=tmp_path
    )
    assert outcome.code == 0, outcome.output
    assert "exact at level full" in outcome.output
    assert "x baseline" in outcome.output
    assert baseline.process.poll() is None
    assert tree.process.poll() is None


def test_a_url_alone_is_judged_by_itself(servers: tuple[Running, Running], tmp_path: Path) -> None:
    _, tree = servers
    selection = ("-m", "bench", "-k", "exact_against or throughput or effective")
    outcome = run(*selection, f"--ddtree-url={tree.url}", f"--ddtree-model={MODEL}", *SMALL, results=tmp_path)
    assert outcome.code == 0, outcome.output
    assert "at level self" in outcome.output
    assert not any("baseline" in name and "against" not in name for name in outcome.tests)


def test_a_server_of_another_config_fails_by_name(servers: tuple[Running, Running], tmp_path: Path) -> None:
    _, tree = servers
    arguments = ("-m", "bench", "-k", "effective", "--ddtree-budget", "16", f"--ddtree-url={tree.url}")
    outcome = run(*arguments, f"--ddtree-model={MODEL}", *SMALL, results=tmp_path)
    assert outcome.tests == {"test_effective_config[b16-k4-wnone]": "failure"}, outcome.output
    assert "budget: asked 16, HTTP says 8" in outcome.output


def test_a_url_where_nothing_answers_is_an_error_that_names_it(tmp_path: Path) -> None:
    outcome = run(
        "-m",
        "bench",
        "-k",
        "effective",
        "--ddtree-url=http://127.0.0.1:9",
        "--ddtree-start-timeout",
        "3",
        f"--ddtree-model={MODEL}",
        results=tmp_path,
    )
    assert set(outcome.tests.values()) == {"error"}, outcome.output
    assert "http://127.0.0.1:9" in outcome.output


def test_a_url_without_the_models_tokenizer_is_refused_at_once(tmp_path: Path) -> None:
    outcome = run("-m", "exactness", "--ddtree-url=http://127.0.0.1:9", results=tmp_path)
    assert outcome.code == 4, outcome.output
    assert "Give the directory that holds them: --ddtree-model=DIR" in outcome.output
    assert outcome.output.count("tokenizer.json") == 1


@pytest.mark.slow
def test_the_smoke_profile_judges_a_running_server_without_a_restart(
    servers: tuple[Running, Running], tmp_path: Path
) -> None:
    _, tree = servers
    selection = ("-m", "exactness", f"--ddtree-url={tree.url}", "--ddtree-profile", "smoke")
    outcome = run(*selection, f"--ddtree-model={MODEL}", results=tmp_path)
    assert outcome.code == 0, outcome.output
    assert outcome.tests.pop("test_full_level[b8-k4-wnone]") == "skipped"
    assert set(outcome.tests.values()) == {"passed"}, outcome.output
    assert "test_exact_against_baseline[b8-k4-wnone]" in outcome.tests
    assert not any("sampl" in name or "relations" in name for name in outcome.tests)
    assert outcome.output.count("b8-k4-wnone: tie at level self") == 1
    assert tree.process.poll() is None
