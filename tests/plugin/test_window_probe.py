"""A window that is claimed and not applied, or that hides what it holds, fails `-m bench`; a healthy one raises no alarm."""

from __future__ import annotations

from pathlib import Path

import pytest
from suite import run

WINDOW = (
    *("-m", "bench", "-k", "window_acts", "--ddtree-window=128", "--ddtree-context=600"),
    *("--ddtree-concurrency=1", "--ddtree-exactness-prompts=4"),
)
NAME = "test_window_acts[b8-k4-w128]"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("plant", "said"),
    [
        ("window_ignored", "shows no effect: drafts differ on 0 of 16 far and 0 of 16 near tasks"),
        ("window_off_by_page", "but the drafter does not see what the window holds"),
    ],
)
def test_a_planted_fault_is_named(plant: str, said: str, tmp_path: Path) -> None:
    found = run(*WINDOW, f"--ddtree-spec-args=--plant {plant}", results=tmp_path)
    assert found.tests == {NAME: "failure"}, found.output
    assert said in found.messages[NAME]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("args", "starts"),
    [
        (("--ddtree-window=128",), "server starts: 2"),
        # The full context is in the grid: no start beyond the configs.
        (("--ddtree-window=none,128,64",), "server starts: 3"),
        (("--ddtree-window=128", "--ddtree-seed=7"), "server starts: 2"),
        (("--ddtree-window=128", "--ddtree-server-args=--numerics bf16"), "server starts: 2"),
    ],
)
def test_a_healthy_window_raises_no_alarm(args: tuple[str, ...], starts: str, tmp_path: Path) -> None:
    found = run(*WINDOW, *args, results=tmp_path)
    assert found.code == 0, found.output
    assert "warning" not in found.output
    assert starts in found.output


@pytest.mark.slow
def test_a_window_that_no_context_reaches_is_skipped(tmp_path: Path) -> None:
    found = run(*WINDOW, "--ddtree-window=2048", results=tmp_path)
    assert found.tests == {"test_window_acts[b8-k4-w2048]": "skipped"}
    assert "a window of 2048 tokens is not reached" in found.messages["test_window_acts[b8-k4-w2048]"]


def test_configs_without_a_window_have_no_such_test(pytester: pytest.Pytester) -> None:
    pytester.makeini("[pytest]\nasyncio_default_fixture_loop_scope = session\n")
    pytester.makepyfile(test_mine="def test_w(ddtree_server, ddtree_window): pass")
    result = pytester.runpytest_inprocess("--collect-only", "-q", "--ddtree-window=none,128")
    result.stdout.fnmatch_lines(
        ["test_mine.py::test_w[[]b8-k4-w128[]]", "*1/3 tests collected (2 deselected)*"]
    )
