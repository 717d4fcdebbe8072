"""The draft window acts: a flag that is echoed and a line in the log are only claims."""

from __future__ import annotations

import pytest

pytestmark = [pytest.mark.bench, pytest.mark.ddtree_speculative]


def test_window_acts(ddtree_server, ddtree_window):
    """Copy tasks nearer and farther than the window, against the full context where it can be had. Only for configs with a window."""
    found = ddtree_window(ddtree_server.config)
    if found.skipped:
        pytest.skip(found.skipped)
    assert found.failure is None, found.failure
