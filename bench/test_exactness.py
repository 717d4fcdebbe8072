"""The short exactness contract that `-m bench` runs: the output is still the target model's."""

from __future__ import annotations

import pytest

pytestmark = [pytest.mark.bench, pytest.mark.exactness, pytest.mark.ddtree_speculative]


def test_exact_against_baseline(ddtree_server, ddtree_verdict, ddtree_explain):
    """Every emitted token, serial and concurrent, judged by the non-speculative server on the prefix that was really emitted."""
    verdict = ddtree_verdict(ddtree_server.config)
    assert verdict.passed, ddtree_explain(ddtree_server.config, verdict)
