from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_ddtree.grid import Config, make_grid
from pytest_ddtree.where import WhereError, parse_where, split

GRID = make_grid(["chain", 4, 8, 32], [2, 8], [None, 2048])


def kept(text: str) -> set[str]:
    return {config.id for config in split(GRID, parse_where(text))[0]}


def test_a_constraint_drops_what_it_says_and_lists_it() -> None:
    stay, go = split(GRID, parse_where("topk <= budget"))
    assert {config.id for config in go} == {"b4-k8-wnone", "b4-k8-w2048"}
    assert len(stay) + len(go) == len(GRID)


def test_chains_are_not_concerned_by_budgets() -> None:
    assert kept("budget >= 1000") == {"chain-wnone", "chain-w2048"}


def test_the_full_context_is_the_largest_window() -> None:
    assert {text.rsplit("-", 1)[1] for text in kept("window == none")} == {"wnone"}
    assert {text.rsplit("-", 1)[1] for text in kept("window <= 4096")} == {"w2048"}


def test_and_or_not_and_sums() -> None:
    assert kept("budget < 3 * topk and window != none") == {
        "chain-w2048",
        "b4-k2-w2048",
        "b4-k8-w2048",
        "b8-k8-w2048",
    }
    assert kept("not (budget == 4 or budget == 8)") == kept("budget == 32")


def test_what_a_config_does_not_have_drops_it_in_no_way_of_saying_it() -> None:
    chains = {"chain-wnone", "chain-w2048"}
    for text in ("budget <= 16", "not budget > 16", "not (budget > 16 or topk > 4)", "not not topk == 3"):
        assert chains <= kept(text), text
    # Unless the rest of the constraint decides.
    assert kept("window == none and budget >= 1000") == {"chain-wnone"}
    assert kept("not (window == none or budget >= 0)") == {"chain-w2048"}


def test_chains_of_comparisons() -> None:
    assert kept("4 <= budget <= 8") == {one.id for one in GRID if one.budget in (None, 4, 8)}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "cannot be read"),
        ("topk <=", "cannot be read"),
        ("depth <= 4", "'depth' is not known"),
        ("budget", "no comparison"),
        ("budget <= 1.5", "no whole number"),
        ("budget <= 'a'", "no whole number"),
        ("budget in [4]", "not known"),
        ("__import__('os').system('x') == 0", "no number"),
        ("budget ** 9999999 > 1", "no number"),
        ("(lambda: 1)() == 1", "no number"),
    ],
)
def test_what_is_no_constraint_is_refused_and_quoted(text: str, words: str) -> None:
    with pytest.raises(WhereError, match=words) as caught:
        parse_where(text)
    assert repr(text) in str(caught.value)


@given(st.text("budgetopkwinw<=>!&| 0123456789()andor+-*none_", max_size=40))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        where = parse_where(text)
    except WhereError:
        return
    assert where.keeps(Config("tree", 8, 4)) in (True, False)
