"""Level full at the end: everything that a config answered, judged by the non-speculative server."""

from __future__ import annotations

import pytest

pytestmark = [pytest.mark.exactness]


def test_full_level(ddtree_config, ddtree_rescore, ddtree_explain):
    """Where one GPU holds one server, the baseline is started once more for all configs (`rescore`)."""
    verdict = ddtree_rescore(ddtree_config)
    assert verdict.passed, ddtree_explain(ddtree_config, verdict)
