"""A server that is not as it was fails the test that left it so, and no other one."""

from __future__ import annotations

import pytest

TESTS = """
from pytest_ddtree.client.records import Request, Sampling

def ask(client, count=3):
    one = Request(input_ids=(5, 6, 7), sampling=Sampling(max_new_tokens=4))
    return [client.generate(one).ok for _ in range(count)]

def test_looks(ddtree_server):
    assert ddtree_server.running

def test_asks(ddtree_client):
    assert all(ask(ddtree_client))

def test_looks_again(ddtree_server):
    assert ddtree_server.running

def test_fails_by_itself(ddtree_client):
    assert not ask(ddtree_client, 1)
"""


def outcomes(pytester: pytest.Pytester, *args: str) -> pytest.RunResult:
    pytester.makeini("[pytest]\nasyncio_default_fixture_loop_scope = session\n")
    pytester.makepyfile(test_user=TESTS)
    return pytester.runpytest_subprocess("-p", "no:cacheprovider", "-k", "b8", *args)


@pytest.mark.slow
def test_a_healthy_server_raises_no_alarm(pytester: pytest.Pytester) -> None:
    # Pages of 16 stay in the prefix cache after each answer, which is no leak.
    result = outcomes(pytester, "--ddtree-server-args=--page-size 16")
    result.assert_outcomes(passed=3, failed=1)
    result.stdout.no_fnmatch_line("*servers after the test*")


def test_a_leak_fails_the_test_that_left_it(pytester: pytest.Pytester) -> None:
    result = outcomes(pytester, "--ddtree-spec-args=--plant cache_leaks:2", "-rf")
    result.assert_outcomes(passed=2, failed=2)
    result.stdout.fnmatch_lines(
        [
            "b8-k4-wnone: 6 of * cache tokens are not free again, with nothing running or queued: they leak",
            "*servers after the test*",
            "b8-k4-wnone: 2 of * cache tokens are not free again*",
        ]
    )
    result.stdout.fnmatch_lines(["FAILED test_user.py::test_asks[[]b8-k4-wnone[]]*"])
