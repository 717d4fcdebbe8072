"""Builds side by side (`--ddtree-build`): what a patch changed, in one session on one machine."""

from __future__ import annotations

import pytest

pytestmark = [pytest.mark.bench, pytest.mark.exactness, pytest.mark.ddtree_speculative]


def test_builds(ddtree_config, ddtree_ab):
    """Every build answers as the target model would, and none is slower than the base beyond noise."""
    outcome = ddtree_ab(ddtree_config)
    assert not outcome.failures, "\n".join([*outcome.failures, *outcome.lines()])
