"""The coding eval: the final answer of every problem, run in a sandbox, compared with the baseline's."""

from __future__ import annotations

import pytest

pytestmark = [pytest.mark.coding, pytest.mark.ddtree_speculative]


def test_problem(ddtree_server, ddtree_problem, ddtree_solve, ddtree_tolerated):
    """A problem that the baseline solves is still solved, and the answer is still the target model's.

    Lost through a tie within the noise floor is counted and shown, not failed (`--ddtree-strict` fails it). Cut at the token limit on
    both sides proves nothing, so it is no pass either.
    """
    pair = ddtree_solve(ddtree_problem)
    judgement = pair.judgement
    if judgement == "cut":
        pytest.skip(
            f"{pair.problem}: both answers ran into the token limit (--ddtree-coding-output), which proves nothing"
        )
    if judgement not in ddtree_tolerated:
        pytest.fail(pair.describe(), pytrace=False)


def test_no_net_loss(ddtree_server, ddtree_coding_comparison):
    """Over all problems: one-sided exact McNemar test with a margin; says the smallest loss it could have seen."""
    comparison = ddtree_coding_comparison(ddtree_server.config)
    print(comparison)
    if comparison.failed:
        pytest.fail(str(comparison), pytrace=False)


def test_no_more_truncation_missing_code_or_timeouts(ddtree_server, ddtree_coding_counters):
    """A fault of speculative decoding often shows as answers that do not end, before it shows in what they solve."""
    grown = [str(counter) for counter in ddtree_coding_counters(ddtree_server.config) if counter.failed]
    if grown:
        pytest.fail("; ".join(grown), pytrace=False)


def test_answers_keep_their_limit(ddtree_server, ddtree_coding_too_long):
    """A limit on tokens holds within an accepted run too; answers that end by themselves would not show it."""
    wrong = ddtree_coding_too_long(ddtree_server.config)
    if wrong:
        pytest.fail("corrupt: " + "\n".join(wrong), pytrace=False)


def test_chat_endpoint_counts_the_same_prompt(
    ddtree_server, ddtree_coding_problems, ddtree_chat_prompt_tokens
):
    """The prompt that is rendered here is the one that a chat client of this server gets."""
    counted = ddtree_chat_prompt_tokens(ddtree_server.config, ddtree_coding_problems[0])
    if isinstance(counted, str):
        pytest.skip(counted)
    ours, theirs = counted
    if ours != theirs:
        pytest.fail(f"{ours} prompt tokens as rendered here, {theirs} by the chat endpoint", pytrace=False)


def test_answers_at_level_full(ddtree_config, ddtree_coding_verdict):
    """Every token of every answer, also behind a first difference, judged by the non-speculative server."""
    verdict = ddtree_coding_verdict(ddtree_config)
    if isinstance(verdict, str):
        pytest.skip(verdict)
    if not verdict.passed:
        pytest.fail("\n".join([verdict.summary(), *verdict.reasons]), pytrace=False)
