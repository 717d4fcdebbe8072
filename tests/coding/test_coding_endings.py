"""Answers whose every token is the model's own, and which still are not its answers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_ddtree.coding.endings import ending_fault

EOS = frozenset({0, 1})
TOKENS = st.lists(st.integers(2, 9), min_size=1, max_size=12)


@given(TOKENS, st.sampled_from([0, 1]))
def test_an_answer_that_ends_with_its_stop_token_is_fine(body: list[int], stop: int) -> None:
    ids = [*body, stop]
    assert ending_fault(ids, ids, finish="stop", eos=EOS, limit=100) is None
    assert ending_fault(ids, None, finish="stop", eos=EOS, limit=100) is None


@given(TOKENS, TOKENS)
def test_tokens_behind_a_stop_token_are_a_leak(body: list[int], rest: list[int]) -> None:
    found = ending_fault([*body, 0, *rest], [*body, 0], finish="stop", eos=EOS, limit=100)
    assert found == f"{len(rest)} tokens stand behind the stop token"


@given(TOKENS, TOKENS)
def test_other_tokens_are_left_to_teacher_forcing(one: list[int], other: list[int]) -> None:
    shared = min(len(one), len(other))
    if one[:shared] != other[:shared]:
        assert ending_fault([*one, 0], [*other, 0], finish="stop", eos=EOS, limit=100) is None


@given(TOKENS, TOKENS)
def test_a_beginning_of_the_baselines_answer_is_no_answer(body: list[int], rest: list[int]) -> None:
    found = ending_fault(body, [*body, *rest, 0], finish="length", eos=EOS, limit=100)
    assert found is not None
    assert "ended after" in found


@pytest.mark.parametrize(
    ("ids", "baseline", "finish", "eos", "limit", "fault"),
    [
        ([5, 6, 7], None, "length", EOS, 2, "3 tokens, where 2 were allowed"),
        ([5, 6], None, "stop", EOS, 9, "its last token is no stop token"),
        ([5, 6], None, "stop", frozenset(), 9, None),
        ([5, 6], [5, 6], "length", EOS, 2, None),
        ([5, 6], [5, 6, 0], "stop", frozenset({0}), 9, "no stop token"),
        ([], [], "stop", EOS, 9, None),
    ],
)
def test_endings(
    ids: list[int],
    baseline: list[int] | None,
    finish: str,
    eos: frozenset[int],
    limit: int,
    fault: str | None,
) -> None:
    found = ending_fault(ids, baseline, finish=finish, eos=eos, limit=limit)
    assert (found is None) if fault is None else (found is not None and fault in found)


def test_a_stop_token_that_one_server_hands_out_and_the_other_keeps_is_no_fault() -> None:
    assert ending_fault([5, 6, 0], [5, 6], finish="stop", eos=EOS, limit=9) is None
    assert ending_fault([5, 6], [5, 6, 0], finish="length", eos=EOS, limit=9) is None
