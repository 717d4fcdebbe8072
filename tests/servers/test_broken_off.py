"""Ctrl-C while servers are stopped: what it breaks off is done at the end of the session, and what was noted is noted once."""

from __future__ import annotations

import signal
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import pytest

from pytest_ddtree.grid import Config
from pytest_ddtree.serving import Servers

from . import support

B8 = Config("tree", 8, 4, 128)


# A connection that was being opened is left to the collector.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize(
    "after_s",
    [pytest.param(0.001, marks=pytest.mark.slow), 0.05, pytest.param(0.5, marks=pytest.mark.slow)],
)
def test_a_release_that_is_broken_off_is_done_at_the_end(tmp_path: Path, after_s: float) -> None:
    """Wherever it is broken off: the server takes no SIGTERM, and has 20 s."""
    starts: list[object] = []
    run = SimpleNamespace(
        settings=SimpleNamespace(api_key=None, server="sglang"),
        results=SimpleNamespace(starts=starts),
        store=lambda kind, **fields: None,
    )
    serving = Servers(run)  # type: ignore[arg-type]
    serving._pool = support.pool(tmp_path, {"sigterm": "ignore"}, stop_timeout_s=20.0)
    serving._pool.get(B8)
    serving._note_starts()
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    try:
        with suppress(KeyboardInterrupt):
            signal.setitimer(signal.ITIMER_REAL, after_s)
            serving.release()
            pytest.fail("it waits for the server")
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)
    serving.close()
    assert support.alive(tmp_path) == {}
    assert len(starts) == 1
