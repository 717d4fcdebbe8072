"""Sweeps of three configs or more: does the machine at the end still do what it did at the beginning?"""

from __future__ import annotations

import pytest

pytestmark = [pytest.mark.bench]


def test_no_drift(ddtree_drift, ddtree_settings):
    """The baseline's cells once more, as many as the time budget allows. Drift is a warning, with `--ddtree-strict` a failure."""
    if not ddtree_drift.found:
        pytest.skip("no cell of the baseline was measured, or no time is left to measure one again")
    assert not (ddtree_settings.strict and ddtree_drift.beyond), "\n".join(ddtree_drift.beyond)
