"""What must hold between the accept lengths of the grid: a lossless verify hides a faulty drafter from every comparison of tokens."""

from __future__ import annotations

import pytest

pytestmark = [pytest.mark.exactness]


def test_relations(ddtree_relations):
    """Tree and chain, budgets, topk 1, windows: on the same prompts, within intervals; after all configs."""
    broken = [relation.summary() for relation in ddtree_relations if relation.kind == "broken"]
    assert not broken, "\n".join(broken)
    if not any(relation.kind == "holds" for relation in ddtree_relations):
        said = "; ".join(relation.summary() for relation in ddtree_relations)
        pytest.skip(
            said
            or "no two configs of the grid are related: add `chain`, another budget, or the window `none`"
        )
