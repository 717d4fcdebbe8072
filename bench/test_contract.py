"""The exactness contract: what a speculative server must keep to, each clause under the name of what it guards."""

from __future__ import annotations

import pytest

pytestmark = [pytest.mark.exactness, pytest.mark.ddtree_speculative]


def test_contract(ddtree_server, ddtree_clause, ddtree_contract, ddtree_explain):
    """One clause. Its short part runs with `-m bench` too."""
    config = ddtree_server.config
    evidence, verdict = ddtree_contract(config, ddtree_clause)
    if evidence.skipped:
        pytest.skip(evidence.skipped)
    assert not evidence.problems, f"{ddtree_clause.guards}\n" + "\n".join(evidence.problems)
    assert verdict is None or verdict.passed, ddtree_explain(config, verdict)
