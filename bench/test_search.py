"""Schedules that nobody thought of, and saved ones once more."""

from __future__ import annotations

import pytest

pytestmark = [pytest.mark.exactness, pytest.mark.ddtree_speculative]


def test_search(ddtree_server, ddtree_search):
    """Submit, stream, cancel, flush, wait over several requests, as a generator has it (`--ddtree-fuzz N`)."""
    failure = ddtree_search(ddtree_server.config)
    assert failure is None, failure


def test_saved_trace(ddtree_server, ddtree_replay):
    """A schedule that failed before, or the reproduction of a corruption (`--ddtree-trace FILE`)."""
    failure = ddtree_replay(ddtree_server.config)
    assert failure is None, failure
