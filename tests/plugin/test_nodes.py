"""A model on several nodes: they come up together, and the end of one is the end of all."""

from __future__ import annotations

import json
from pathlib import Path

import psutil
import pytest
from running import MODEL

FAKE = Path(__file__).parents[1] / "servers" / "fake"
NODES = (
    *("-p", "no:cacheprovider", "--ddtree-server=sglang", f"--ddtree-sglang-src={FAKE}"),
    *(f"--ddtree-model={MODEL}", f"--ddtree-draft-model={MODEL.parent}/draft"),
    *("--ddtree-budget=chain", "--ddtree-context=60", "--ddtree-server-args=--dist-init-addr 127.0.0.1:5000"),
    *("--ddtree-node-prefix=env NODE=0", "--ddtree-node-prefix=env NODE=1"),
)
TESTS = """
import pathlib, time

def test_in_use(ddtree_server):
    # Nothing tells the plugin of the other node's end.
    pathlib.Path("end").touch()
    deadline = time.monotonic() + 300
    while ddtree_server.running and time.monotonic() < deadline:
        time.sleep(0.05)

def test_more(ddtree_server):
    assert ddtree_server.running
"""


def started_under(path: Path) -> list[psutil.Process]:
    """Living processes that have this test's folder in their environment."""
    found = []
    for process in psutil.process_iter():
        try:
            if (
                process.environ().get("TEST_RUN_DIR") == str(path)
                and process.status() != psutil.STATUS_ZOMBIE
            ):
                found.append(process)
        except psutil.Error:
            continue
    return found


def test_one_dead_node_is_an_error_and_ends_all(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = {"flags": ["--speculative-dflash-block-size"], "node_ends_at": str(pytester.path / "end")}
    monkeypatch.setenv("FAKE_SGLANG", json.dumps(script))
    monkeypatch.setenv("TEST_RUN_DIR", str(pytester.path))
    monkeypatch.setenv("PYTEST_DDTREE_LOCK_DIR", str(pytester.path / "locks"))
    pytester.makeini("[pytest]\nasyncio_default_fixture_loop_scope = session\n")
    pytester.makepyfile(test_user=TESTS)
    result = pytester.runpytest_subprocess(*NODES, "-k", "chain")
    said = result.stdout.str()
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    # The test that used it, which does not look at the answers itself, is an error with the reason.
    assert "ServerDied: the server of chain-wnone ended while it was in use (exit code 7)" in said
    result.assert_outcomes(errors=1, passed=1)
    assert "chain-wnone (restart-after-death)" in said
    logs = sorted(path.name for path in pytester.path.glob(".ddtree/*/logs/chain-wnone-*.log"))
    assert logs == [
        *("chain-wnone-1-node1.log", "chain-wnone-1.log", "chain-wnone-2-node1.log", "chain-wnone-2.log"),
    ]
    assert started_under(pytester.path) == []
