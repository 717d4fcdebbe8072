"""Starts = configs + baseline + starts with a printed reason, in whatever order and selection the tests run."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path

import pytest
from suite import SMALL, run

ROOT = Path(__file__).parents[2]
WEIGHTS = ROOT / "pytest_ddtree" / "reference" / "weights"
TREE_FLAGS = (
    *("--speculative-ddtree-budget", "--speculative-ddtree-topk"),
    *("--speculative-draft-window-size", "--speculative-dflash-block-size"),
)
# A stand-in for SGLang, of which one runs at a time: a test out of its config's place would cost two starts.
ONE_AT_A_TIME = (
    *("--ddtree-server=sglang", f"--ddtree-sglang-src={ROOT / 'tests' / 'servers' / 'fake'}"),
    *(f"--ddtree-model={WEIGHTS}/target", f"--ddtree-draft-model={WEIGHTS}/draft"),
    *("--ddtree-dialect=reference", "--ddtree-budget=chain,8,16", "--ddtree-context=60"),
)
ALL = ["baseline", "chain-wnone", "b8-k4-wnone", "b16-k4-wnone"]
SHUFFLER = """
import random

def pytest_collection_modifyitems(items):
    {how}
"""
EXPLAINED = {"rescore", "best-baseline", "window-probe"}
"""Reasons for which healthy servers may start again; none is that a test ran out of its config's place."""


def starts_of(results: Path) -> list[tuple[str, str | None]]:
    """Config and reason of every start of the newest run under `results`, in order."""
    newest = max(results.glob("*/results.jsonl"), key=lambda path: path.stat().st_mtime_ns)
    lines = [json.loads(line) for line in newest.read_text().splitlines()]
    return [
        (line["start"]["config"], line["start"]["reason"])
        if "start" in line
        else (line["config"], line["reason"])
        for line in lines
        if line["kind"] == "start"
    ]


@pytest.fixture
def swept(project: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    monkeypatch.setenv("FAKE_SGLANG", json.dumps({"flags": TREE_FLAGS}))
    monkeypatch.setenv("PYTEST_DDTREE_LOCK_DIR", str(project.path / "locks"))
    project.makeini("[pytest]\nasyncio_default_fixture_loop_scope = session\n")
    project.makepyfile(
        reversing=SHUFFLER.format(how="items.reverse()"),
        shuffling=SHUFFLER.format(how="random.Random(5).shuffle(items)"),
        test_first="""
        import pytest

        def test_every(ddtree_server):
            pass

        @pytest.mark.ddtree_speculative
        def test_speculative(ddtree_server):
            pass
        """,
        test_second="""
        import pathlib

        def test_more(ddtree_server):
            assert ddtree_server.config.id != "b16-k4-wnone" or pathlib.Path("mended").exists()
        """,
    )
    project.path.joinpath("test_mine.py").unlink()
    return project


def once(project: pytest.Pytester, *args: str) -> list[tuple[str, str | None]]:
    result = project.runpytest_subprocess(*ONE_AT_A_TIME, *args)
    found = starts_of(project.path / ".ddtree")
    assert f"server starts: {len(found)} in" in result.stdout.str()
    return found


def plain(*configs: str) -> list[tuple[str, str | None]]:
    return [(config, None) for config in configs]


@pytest.mark.slow
def test_one_start_a_config_whatever_shuffles_the_tests(swept: pytest.Pytester) -> None:
    found = once(swept, "-p", "shuffling")
    assert found == plain(*ALL)
    # The test that failed comes first of its config, and nothing else.
    assert once(swept, "--ff", "-p", "reversing") == plain(*ALL)
    assert once(swept, "--lf") == plain("b16-k4-wnone")


@pytest.mark.parametrize(
    ("args", "configs"),
    [
        pytest.param(("-k", "speculative"), ALL[1:], marks=pytest.mark.slow),
        pytest.param(("test_first.py::test_speculative[b8-k4-wnone]",), ALL[2:3], marks=pytest.mark.slow),
        (
            (
                "test_first.py::test_every[b16-k4-wnone]",
                "test_second.py::test_more[baseline]",
                "test_second.py::test_more[b16-k4-wnone]",
                "test_first.py::test_every[baseline]",
            ),
            [ALL[0], ALL[3]],
        ),
    ],
    ids=["-k", "node id", "node ids in a bad order"],
)
def test_only_what_was_selected_is_started(
    swept: pytest.Pytester, args: tuple[str, ...], configs: Sequence[str]
) -> None:
    assert once(swept, *args) == plain(*configs)


@pytest.mark.slow
@pytest.mark.parametrize(
    "args", [("--nf",), ("--ff",), ("--sw",), ("-p", "reversing"), ("--nf", "--ff")], ids=" ".join
)
def test_orders_of_a_second_run(swept: pytest.Pytester, args: tuple[str, ...]) -> None:
    # What stepwise knows is forgotten by a run without it.
    once(swept, "-p", "shuffling", *(args if args == ("--sw",) else ()))
    swept.path.joinpath("mended").touch()
    if args != ("--sw",):  # It begins anew where the number of tests changed.
        swept.makepyfile(test_newest="def test_new(ddtree_server): pass")
    found = once(swept, *args)
    # --sw begins at the test that failed.
    assert found == plain(*(ALL[3:] if args == ("--sw",) else ALL))


@pytest.mark.slow
@pytest.mark.parametrize(
    "args",
    [
        ("-m", "bench"),
        ("-m", "exactness"),
        ("bench/test_throughput.py::test_throughput[b8-k4-wnone-ctx60-c2]",),
        ("bench/test_exactness.py::test_exact_against_baseline[b8-k4-wnone]",),
        ("bench/test_effective_config.py",),
        ("bench/test_contract.py", "-k", "serial"),
        ("bench/test_sampling.py", "-k", "top_k"),
        ("bench/test_full_level.py",),
        ("bench/test_full_level.py", "bench/test_exactness.py"),
        ("-m", "coding", "-k", "two_sum or clamp or net_loss"),
    ],
    ids=" ".join,
)
def test_the_suites(args: tuple[str, ...], tmp_path: Path) -> None:
    found = run(*args, *SMALL, "--ddtree-budget=8", results=tmp_path)
    assert found.code == 0, found.output
    starts = starts_of(tmp_path)
    first = [config for config, reason in starts if reason is None]
    assert len(set(first)) == len(first), found.output
    assert "b8-k4-wnone" in first
    assert set(first) <= {"baseline", "b8-k4-wnone"}
    for config, reason in starts:
        assert reason is None or reason in EXPLAINED, found.output
        shown = f"{config} ({reason})" if reason else config
        assert re.search(rf"server starts: {len(starts)} in .*{re.escape(shown)} ", found.output), (
            found.output
        )
