"""The coding eval: the final answer of every problem, run in a sandbox, compared with the baseline's."""

from __future__ import annotations

import pytest

pytestmark = [pytest.mark.coding, pytest.mark.ddtree_speculative]


def test_problem(ddtree_server, ddtree_problem, ddtree_solve, ddtree_tolerated):
    """A problem that the baseline solves is still solved, and the answer is still the target model's.

    Lost through a tie within the noise floor is counted and shown, not failed (`--ddtree-strict` fails it).
    """
    pair = ddtree_solve(ddtree_problem)
    assert pair.judgement in ddtree_tolerated, pair.describe()


def test_no_net_loss(ddtree_server, ddtree_coding_comparison):
    """Over all problems: one-sided exact McNemar test with a margin; says the smallest loss it could have seen."""
    comparison = ddtree_coding_comparison(ddtree_server.config)
    assert not comparison.failed, str(comparison)
