"""What cells cost: what nobody selected but is measured all the same, and what gates may ask for."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_ddtree.cell_costs import CellCost, Rounds, cell_costs, counts
from pytest_ddtree.grid import BASELINE, CellKey, Config, make_grid
from pytest_ddtree.results.gatekeeper import RECORDED, GatePolicy
from pytest_ddtree.results.gates import LOOKS
from pytest_ddtree.results.thresholds import parse_threshold

(TREE,) = make_grid((8,), (4,), (None,))
KEY, WIDE = CellKey(60, 1), CellKey(60, 8)
WANTED = Rounds(least=4, most=6)


def costs(
    *selected: tuple[Config, CellKey],
    compared: tuple[CellKey, ...] = (),
    again: tuple[CellKey, ...] = (),
    policy: GatePolicy | None = None,
    expected: bool = False,
    measured: Callable[[Config, CellKey], int] = lambda config, key: 0,
) -> list[CellCost]:
    found = cell_costs(
        selected,
        compared=compared,
        again=again,
        wanted=WANTED,
        policy=policy,
        expected=expected,
        measured=measured,
    )
    return list(found)


def test_the_baseline_is_counted_though_nobody_selected_it() -> None:
    assert costs((TREE, KEY)) == [CellCost(KEY, 4, 6)]
    assert costs((TREE, KEY), compared=(KEY,)) == [CellCost(KEY, 4, 6)] * 2
    assert costs((BASELINE, KEY), (TREE, KEY), compared=(KEY,)) == [CellCost(KEY, 4, 6)] * 2


def test_drift_is_measured_once_more_with_the_fewest_rounds() -> None:
    assert costs((TREE, WIDE), again=(KEY,)) == [CellCost(WIDE, 4, 6), CellCost(KEY, 4, 4)]


@pytest.mark.parametrize(
    ("update", "expected", "least", "most"),
    [
        ("no", True, 4, LOOKS[-1]),
        ("new", True, 4, LOOKS[-1]),
        ("all", True, RECORDED, RECORDED),
        ("no", False, 4, 6),
    ],
)
def test_gates_ask_for_more_of_a_headline_and_of_its_baseline(
    update: str, expected: bool, least: int, most: int
) -> None:
    policy = GatePolicy(headline=((TREE.id, KEY),), update=update)
    found = costs((TREE, KEY), (TREE, WIDE), compared=(KEY, WIDE), policy=policy, expected=expected)
    assert found == [
        CellCost(KEY, 4, most),
        CellCost(WIDE, 4, 6),
        CellCost(KEY, least, most),
        CellCost(WIDE, 4, 6),
    ]


def test_a_threshold_asks_wherever_it_holds() -> None:
    policy = GatePolicy(headline=(), thresholds=(parse_threshold("tok_s >= 100 @ c=8"),))
    found = costs((TREE, KEY), (TREE, WIDE), policy=policy)
    assert found == [CellCost(KEY, 4, 6), CellCost(WIDE, 4, LOOKS[-1])]


@given(st.integers(0, 40))
def test_what_a_resumed_run_has_is_not_counted(done: int) -> None:
    (found,) = costs((TREE, KEY), measured=lambda config, key: done)
    assert (found.least, found.most) == (max(0, 4 - done), max(0, 6 - done))


def test_rounds_and_requests_are_added_up() -> None:
    rounds, requests = counts([CellCost(KEY, 2, 3), CellCost(WIDE, 0, 1)], turnovers=2)
    assert (rounds.least, rounds.most) == (2, 4)
    assert (requests.least, requests.most) == (1 * (1 + 4), 1 * (1 + 6) + 8 * 3)
    assert CellCost(WIDE, 0, 3).serial(2) == 7
