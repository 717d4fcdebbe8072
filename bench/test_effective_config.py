"""The server runs what was asked: every knob is read back and compared, by name and value."""

from __future__ import annotations

import pytest

pytestmark = [pytest.mark.bench]


@pytest.mark.ddtree_speculative
def test_effective_config(ddtree_server, ddtree_mismatches):
    """A window that everybody believes is on and that the log shows as None fails here, before it costs a benchmark."""
    mismatches = ddtree_mismatches(ddtree_server)
    assert not mismatches, "\n".join(str(mismatch) for mismatch in mismatches)
