"""When an answer counts as the expected one."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_ddtree.coding.checking import Outcome, agree, printable
from pytest_ddtree.coding.checking.compare import lines
from pytest_ddtree.coding.checking.show import show, show_call, show_text

NAN = math.nan


@pytest.mark.parametrize(
    ("got", "expected", "same"),
    [
        (1, 1, True), (1, 2, False), (True, 1, False), (1, True, False), (1, 1.0, False), (0, False, False),
        ("a", "a", True), ("a", b"a", False), (None, None, True), (None, 0, False), (0.0, -0.0, True),
        (NAN, NAN, True), (NAN, 1.0, False), (math.inf, math.inf, True), (0.1 + 0.2, 0.3, False),
        ([1, 2], [1, 2], True), ([1, 2], (1, 2), False), ([1, 2], [2, 1], False), ((1, [2, {3}]), (1, [2, {3}]), True),
        ({1, 2}, {2, 1}, True), ({1}, frozenset({1}), False), ({1: 2, 3: 4}, {3: 4, 1: 2}, True),
        ({1: 2}, {True: 2}, False), ({1: 2}, {1: 2.0}, False), ({1}, {1.0}, False), (10**30, 10**30, True),
        (1j, 1j, True), ([[]], [[], []], False),
    ],
)  # fmt: skip
def test_exact(got: Any, expected: Any, same: bool) -> None:
    assert agree(got, expected) is same


@pytest.mark.parametrize(
    ("got", "expected", "same"),
    [
        (0.1 + 0.2, 0.3, True), (1, 1.0, True), (2.0, 2, True), (True, 1, False), (1, True, False), (1.0, True, False),
        (1e-9, 0, True), (1e-3, 0, False), (1e12, 1e12 + 1, True), (1e12, 1.001e12, False), (NAN, NAN, True),
        (NAN, 0.0, False), (math.inf, math.inf, True), (math.inf, -math.inf, False), (math.inf, 1e308, False),
        (10**400, 10**400, True), (10**400, 10**400 + 1, False), (10**400, 1.0, False),
        ([0.3, (1, "x")], [0.1 + 0.2, (1.0, "x")], True), ([1.0], (1.0,), False), ([1.0], [1.0, 2.0], False),
        ({"a": 0.3, "b": [1]}, {"b": [1.0], "a": 0.1 + 0.2}, True), ({"a": 1.0}, {"b": 1.0}, False),
        ({"a": 1.0}, {"a": 1.0, "b": 2.0}, False), ({1.0}, {1.0}, True), ({1.0}, {1}, False),
        (1j, 1.0000001j, True), (1j, 2j, False), ("1.0 x\n", "1 x", True), ("1.0 x", "1 y", False),
        ("0.30000000004", "0.3", True), ("1 2", "1", False), ("1\n2", "1", False), (None, 0, False), ("1", 1, False),
        ("x 10000001", "x 10000000", False), ("10000000.5", "10000000", True), ("9" * 400, "8" * 400, False), ("1e999", "2e999", False),
        ("9" * 5000, "8" * 5000, False), ("inf nan", "Infinity NaN", True),
    ],
)  # fmt: skip
def test_approx(got: Any, expected: Any, same: bool) -> None:
    assert agree(got, expected, "approx") is same


@pytest.mark.parametrize(
    ("got", "expected", "same"),
    [
        (5, 5.0, True), (True, 1, True), (0, False, True), ([1, 2.0], [1.0, 2], True), ({1: 2}, {True: 2.0}, True), ({1}, {1.0}, True),
        (0.1 + 0.2, 0.3, True), ([0.1 + 0.2], [0.3], True), ({1}, frozenset({1}), True), (1e-3, 0, False),
        ([1], (1,), False), ("1", 1, False), ("a", b"a", False), (None, 0, False), (1, 2, False), ([1, 2], [2, 1], False),
        (NAN, NAN, True), ("a ", "a", False), ("1.0", "1", False), ({"a": ["1 "]}, {"a": ["1"]}, False),
        (5_000_000, 5_000_001, False), (5_000_000, 5_000_000.5, True),
    ],
)  # fmt: skip
def test_equal_is_pythons_own_or_approx(got: Any, expected: Any, same: bool) -> None:
    assert agree(got, expected, "equal") is same


def test_approx_takes_an_absolute_tolerance() -> None:
    assert agree(1.05, 1.0, "approx", 0.1)
    assert not agree(1.05, 1.0, "approx", 0.01)


@pytest.mark.parametrize(
    ("got", "expected", "same"),
    [
        ([1, 2, 3], [3, 1, 2], True), ([1, 1, 2], [1, 2, 2], False), ([1, 2], [1, 2, 2], False), ((1, 2), (2, 1), True),
        ((1, 2), [2, 1], False), ([[1], {2: 3}], [{2: 3}, [1]], True), ([1], [True], False), ({1, 2}, {2, 1}, True),
        (frozenset({1}), {1}, False), ("ab", "ba", False), (1, 1, False), ([NAN, 1], [1, NAN], True), ([], [], True),
    ],
)  # fmt: skip
def test_set(got: Any, expected: Any, same: bool) -> None:
    assert agree(got, expected, "set") is same


@pytest.mark.parametrize(
    ("got", "expected", "same"),
    [
        ("a\nb\n", "a\nb", True), ("a  \nb\t\n\n\n", "a\nb\n", True), (" a", "a", False), ("a\n\nb", "a\nb", False),
        ("", "\n\n", True), ("a", "A", False), ("a\r\nb", "a\nb", True), (["a"], "a", False), ("1.0", "1", False),
    ],
)  # fmt: skip
def test_lines(got: Any, expected: Any, same: bool) -> None:
    assert agree(got, expected, "lines") is same


def test_an_unknown_comparison_is_refused() -> None:
    with pytest.raises(ValueError, match="unknown comparison 'fuzzy'"):
        agree(1, 1, "fuzzy")


PLAIN = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(), st.binary()),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.lists(inner, max_size=4).map(tuple),
        st.dictionaries(st.text(), inner, max_size=4),
    ),
    max_leaves=12,
)


@given(PLAIN)
def test_everything_agrees_with_itself(value: Any) -> None:
    assert agree(value, value)
    assert agree(value, value, "approx")


@given(PLAIN, PLAIN)
def test_agreement_is_symmetric_and_exact_implies_approx(one: Any, other: Any) -> None:
    for cmp in ("exact", "approx"):
        assert agree(one, other, cmp) == agree(other, one, cmp)
    assert not agree(one, other) or agree(one, other, "approx")


@given(st.lists(st.integers(0, 5), max_size=8), st.randoms(use_true_random=False))
def test_set_ignores_order_and_counts(items: list[int], random: Any) -> None:
    shuffled = list(items)
    random.shuffle(shuffled)
    assert agree(shuffled, items, "set")
    assert not agree([*shuffled, 9], items, "set")


@given(st.text())
def test_lines_ignore_white_space_at_the_ends(text: str) -> None:
    assert lines("\n".join(line + " \t" for line in text.split("\n")) + "\n\n") == lines(text)


@given(PLAIN)
def test_values_are_shown_short_and_encodable(value: Any) -> None:
    assert len(show(value).encode()) <= 10_000


@given(st.text(st.characters(exclude_categories=[])))
def test_what_a_solution_says_cannot_steer_a_terminal(text: str) -> None:
    shown = printable(text)
    shown.encode()
    assert not any(ord(char) < 32 and char not in "\n\t" for char in shown)
    assert Outcome("error", text).detail == shown
    if text.isprintable():
        assert shown == text


def test_extreme_values_are_shown() -> None:
    assert show(10**5000) == "<integer of 16610 bits>"
    assert "\\ud800" in show("\ud800")
    assert len(show("x" * 10**6)) < 600
    assert len(show([["x" * 400] * 50] * 50)) <= 1000
    nest: Any = 0
    for _ in range(60):
        nest = [nest]
    assert "..." in show(nest)
    assert show_text("a" * 5000).count("a") < 1000
    assert show_call("f", (1, "x"), {"k": [2]}) == "f(1, 'x', k=[2])"
