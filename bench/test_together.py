"""All cells together, against the expected figures; runs last, and only with `--ddtree-expected`."""

from __future__ import annotations

import pytest

pytestmark = [pytest.mark.bench]


def test_no_small_loss_everywhere(ddtree_together):
    """3 % less in all cells is seen here, where no single cell shows it."""
    assert not ddtree_together.failures, "\n".join(ddtree_together.failures)
