"""Answers at temperature above 0 are samples from the target model."""

from __future__ import annotations

import pytest

pytestmark = [pytest.mark.exactness, pytest.mark.ddtree_speculative]


def test_sampled_answers(ddtree_config, ddtree_sampling):
    """At temperature 1 each token is a draw from the baseline's distribution after what was really emitted."""
    verdict = ddtree_sampling(ddtree_config)
    assert verdict.passed, f"{verdict.kind}: " + "\n".join(verdict.reasons)


def test_top_k(ddtree_config, ddtree_top_k):
    """With top_k no token comes that is less probable than the k-th."""
    outside = ddtree_top_k(ddtree_config)
    assert not outside, "\n".join(map(str, outside[:10]))
