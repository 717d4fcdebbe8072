"""A knob that the build does not have: a usage error before anything starts, or, in a sweep, skipped and listed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
WEIGHTS = ROOT / "pytest_ddtree" / "reference" / "weights"
FAKE = ROOT / "tests" / "servers" / "fake"
SGLANG = (
    *("-p", "no:cacheprovider", "--ddtree-server=sglang", f"--ddtree-sglang-src={FAKE}"),
    *(f"--ddtree-model={WEIGHTS}/target", f"--ddtree-draft-model={WEIGHTS}/draft", "--ddtree-context=60"),
)


@pytest.fixture
def chain_only(project: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """A scripted stand-in for a build that has the DFlash chain and no tree."""
    monkeypatch.setenv("FAKE_SGLANG", json.dumps({"flags": ["--speculative-dflash-block-size"]}))
    monkeypatch.setenv("PYTEST_DDTREE_LOCK_DIR", str(project.path / "locks"))
    return project


def test_nothing_that_the_build_can_run(chain_only: pytest.Pytester) -> None:
    result = chain_only.runpytest_subprocess(*SGLANG, "-k", "speculative", "--ddtree-budget=8,16")
    assert result.ret == pytest.ExitCode.USAGE_ERROR, result.stdout.str()
    said = result.stderr.str() + result.stdout.str()
    assert "b8-k4-wnone cannot run on this build: this build has the DFlash chain only" in said
    assert "--speculative-dflash-block-size" in said, "what the build has"
    assert not list(chain_only.path.glob(".ddtree/*/logs/b8*"))


def test_in_a_sweep_it_is_listed_and_skipped(chain_only: pytest.Pytester) -> None:
    result = chain_only.runpytest_subprocess(
        *SGLANG, "-k", "speculative", "--ddtree-budget=chain,8", "-rs", "--ddtree-block-size=draft"
    )
    result.assert_outcomes(passed=1, skipped=1)
    result.stdout.fnmatch_lines(
        [
            "ddtree: b8-k4-wnone cannot run on this build: this build has the DFlash chain only*",
            "harness overhead * (probe *",
            "warning: b8-k4-wnone cannot run on this build:*",
            "SKIPPED*this build cannot run b8-k4-wnone:*",
        ]
    )


def test_a_plan_does_not_ask_the_build_and_says_so(chain_only: pytest.Pytester) -> None:
    result = chain_only.runpytest_subprocess(
        *SGLANG, "-k", "speculative", "--ddtree-budget=chain,8", "--ddtree-plan"
    )
    assert result.ret == pytest.ExitCode.OK
    result.stdout.fnmatch_lines(
        ["  b8-k4-wnone: *", "the build was not asked: configs that it cannot express are counted, *"]
    )
    assert not list(chain_only.path.glob(".ddtree/*/logs"))


def test_two_nodes_come_and_go_together(project: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_SGLANG", json.dumps({"flags": ["--speculative-dflash-block-size"]}))
    monkeypatch.setenv("PYTEST_DDTREE_LOCK_DIR", str(project.path / "locks"))
    result = project.runpytest_subprocess(
        *SGLANG,
        *(
            "-k",
            "speculative",
            "--ddtree-budget=chain",
            "--ddtree-server-args=--dist-init-addr 127.0.0.1:5000",
        ),
        *("--ddtree-node-prefix=nice -n 0", "--ddtree-node-prefix=env NODE=1"),
    )
    result.assert_outcomes(passed=1)
    logs = {path.name: path.read_text() for path in project.path.glob(".ddtree/*/logs/*.log")}
    first, second = logs["chain-wnone-1.log"], logs["chain-wnone-1-node1.log"]
    assert "--nnodes 2 --node-rank 0" in first.splitlines()[0]
    assert "env NODE=1" in second.splitlines()[0]
    assert "--nnodes 2 --node-rank 1" in second.splitlines()[0]
