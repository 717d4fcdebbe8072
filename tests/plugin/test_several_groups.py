"""Several groups of servers at once with pytest-xdist: own baselines, one run folder, and what happens when a worker dies."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from running import DRAFT, MODEL, TREE, Running
from suite import SMALL, run, servers_of

from pytest_ddtree.results.runs import read_run

pytest.importorskip("xdist")

GROUPS = ("-m", "bench", "-n", "2", "--ddtree-gpu-groups=0,1/2,3", "--ddtree-budget=chain,8")


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("-n", "2", "--ddtree-gpu-groups=0/1/2"), ["-n 3"]),
        (("--ddtree-gpu-groups=0/1",), ["run with -n 2"]),
        (("-n", "2", "--ddtree-url=http://127.0.0.1:9"), ["needs 2 of --ddtree-url"]),
        (
            (
                "-n",
                "2",
                "--ddtree-url=http://a:1",
                "--ddtree-url=http://b:1",
                "--ddtree-baseline-url=http://c:1",
            ),
            ["needs 2 of --ddtree-baseline-url, not 1"],
        ),
        (("-n", "2", "--ddtree-gpu-groups=0/1", "--ddtree-update-expected"), ["--ddtree-update-expected"]),
        (("--ddtree-gpu-groups=0,1/1",), ["names GPU 1 twice"]),
        (("--ddtree-gpu-groups=0/1", "--ddtree-url=http://a:1"), ["not for --ddtree-server url"]),
    ],
)
def test_refused_before_anything_starts(
    project: pytest.Pytester, args: tuple[str, ...], words: list[str]
) -> None:
    result = project.runpytest_inprocess("-m", "bench", *args)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    for word in words:
        assert word in result.stderr.str()


def test_what_the_workers_refuse_is_said_once(project: pytest.Pytester) -> None:
    """Each worker checks the options; without a word of theirs the run would end as an internal error of pytest-xdist."""
    flags = ("-n", "2", "--ddtree-gpu-groups=0/1", "--ddtree-spec-args=--plant typo", "--ddtree-budget=4,8")
    result = project.runpytest_subprocess("-m", "bench", *flags)
    assert result.ret == pytest.ExitCode.USAGE_ERROR, result.stdout.str()
    said = result.stderr.str()
    assert said.count("the embedded server does not take what the options say for b4-k4-wnone") == 1
    assert "INTERNALERROR" not in result.stdout.str() + said


@pytest.mark.slow
def test_two_groups_make_one_run(tmp_path: Path) -> None:
    selection = ("-k", "effective or test_exact or throughput", *SMALL)
    found = run(*GROUPS, *selection, f"--ddtree-html={tmp_path}/report.html", results=tmp_path)
    assert found.code == 0, found.output
    (file,) = tmp_path.glob("*/results.jsonl")
    stored = read_run(file)
    cells = {config for config, _ in stored.results.cells}
    assert cells == {"baseline", "baseline@group1", "chain-wnone", "b8-k4-wnone"}
    assert sorted(start.config for start in stored.results.starts) == sorted(cells)
    assert len(stored.results.groups) == 1
    assert {name: stored.results.verdict(name).passed for name in ("chain-wnone", "b8-k4-wnone")} == {
        "chain-wnone": True,
        "b8-k4-wnone": True,
    }
    assert "server starts: 4" in found.output
    # The two configs ran on GPUs of their own, each beside the baseline of its group.
    gpus = {}
    for log in file.parent.glob("group*/logs/*.log"):
        command = log.read_text().partition("\n")[0]
        if visible := re.search(r"^\$ .*CUDA_VISIBLE_DEVICES=(\S+)", command):
            gpus.setdefault(visible[1], set()).add(log.name.rpartition("-")[0])
    assert set(gpus) == {"0,1", "2,3"}
    assert all("baseline" in names and len(names) == 2 for names in gpus.values())
    assert "b8-k4-wnone" in (tmp_path / "report.html").read_text()
    assert servers_of(tmp_path) == []


DYING = """
import os, pathlib, signal

def test_one(ddtree_server):
    assert ddtree_server.running

def test_two(ddtree_server):
    mark = pathlib.Path("died")
    if ddtree_server.config.id == "b8-k4-wnone" and not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)

def test_three(ddtree_server):
    assert ddtree_server.running
"""


@pytest.mark.slow
def test_a_worker_that_dies_is_said_and_replaced(pytester: pytest.Pytester) -> None:
    pytester.makeini("[pytest]\nasyncio_default_fixture_loop_scope = session\n")
    pytester.makepyfile(test_user=DYING)
    results = pytester.path / "results"
    result = pytester.runpytest_subprocess(
        *("-p", "no:cacheprovider", "-n", "2", "--ddtree-gpu-groups=0/1", "--ddtree-budget=chain,8"),
        *(f"--ddtree-results={results}", "-k", "not baseline"),
    )
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines_random(
        ["*crashed while running*test_two*b8-k4-wnone*", "warning: worker gw* died*"]
    )
    # xdist gives the whole config to the new worker, the test that died with it included.
    result.assert_outcomes(passed=6, failed=1)
    stored = read_run(next(iter(results.glob("*/results.jsonl"))))
    assert [start.config for start in stored.results.starts].count("b8-k4-wnone") == 2
    assert servers_of(results) == []


@pytest.fixture
def four(tmp_path: Path) -> Iterator[dict[str, Running]]:
    """Servers that somebody else runs: a tree, a chain, and a baseline for each worker."""
    with ExitStack() as stack:
        found: dict[str, Running] = {}
        for name, arguments in {
            "tree": (*TREE, *DRAFT),
            "chain": ("--speculative-algorithm", "DFLASH", *DRAFT),
            "baseline": (),
            "baseline@group1": (),
        }.items():
            found[name] = Running(tmp_path / f"{name}.log", *arguments)
            stack.callback(found[name].stop)
        yield found


@pytest.mark.slow
def test_several_urls_each_config_on_the_server_that_runs_it(
    four: dict[str, Running], tmp_path: Path
) -> None:
    # The tree is the later config and the first URL.
    urls = (f"--ddtree-url={four['tree'].url}", f"--ddtree-url={four['chain'].url}")
    bases = tuple(f"--ddtree-baseline-url={four[name].url}" for name in ("baseline", "baseline@group1"))
    selection = ("-m", "bench", "-k", "effective or test_exact or throughput", "-n", "2", *SMALL)
    results = tmp_path / "results"
    found = run(
        *(*selection, *urls, *bases, f"--ddtree-model={MODEL}", "--ddtree-budget=chain,8"), results=results
    )
    assert found.code == 0, found.output
    (file,) = results.glob("*/results.jsonl")
    stored = read_run(file).results
    assert {config for config, _ in stored.cells} == {
        *("baseline", "baseline@group1", "chain-wnone", "b8-k4-wnone"),
    }
    read_back = {name: seen["knobs"]["algorithm"]["http"] for name, seen in stored.effective.items()}
    assert read_back["chain-wnone"] == "DFLASH"
    assert read_back["b8-k4-wnone"] == "DDTREE"
    assert {stored.verdict(name).passed for name in ("chain-wnone", "b8-k4-wnone")} == {True}
    assert "server starts" not in found.output or "server starts: 4" in found.output
    assert all(one.process.poll() is None for one in four.values())

    wrong = run(
        *selection, *urls, f"--ddtree-model={MODEL}", "--ddtree-budget=chain,16", results=tmp_path / "wrong"
    )
    assert wrong.tests["test_effective_config[chain-wnone]"] == "passed", wrong.output
    assert wrong.tests["test_effective_config[b16-k4-wnone]"] == "failure"
    assert "budget: asked 16, HTTP says 8" in wrong.output
