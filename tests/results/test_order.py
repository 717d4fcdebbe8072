from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from made import KEY, a_round

from pytest_ddtree.grid import CellKey
from pytest_ddtree.report.merged import merged
from pytest_ddtree.results.order import blocks, drift_cells, drifts, mirrored, turns
from pytest_ddtree.results.overhead import Account, Ledger
from pytest_ddtree.results.runs import rebuild
from pytest_ddtree.results.store import Stored
from pytest_ddtree.turns import fair

NAMES = st.lists(st.text("abcdef", min_size=1, max_size=3), min_size=2, max_size=6, unique=True)


@given(NAMES, st.integers(1, 5))
def test_a_drift_that_grows_evenly_favours_nobody(names: list[str], pairs: int) -> None:
    order = mirrored(names, 2 * pairs)
    places = {name: [place for place, one in enumerate(order) if one == name] for name in names}
    means = {sum(where) / len(where) for where in places.values()}
    assert max(means) - min(means) < 1e-9
    assert {len(where) for where in places.values()} == {2 * pairs}


@given(st.integers(1, 4), st.integers(1, 9), st.integers(1, 4))
def test_builds_that_are_up_at_once_come_first_equally_often_in_every_cell(
    pairs: int, rounds: int, widths: int
) -> None:
    names, cells = ("base", "patched"), [CellKey(60, 1 + place) for place in range(widths)]
    stays = blocks(names, passes=2 * pairs, rounds=rounds)
    order = [one for at in range(0, len(stays), 2) for one in turns(stays[at : at + 2], names, cells)]
    for key in cells:
        of_cell = [(count, name) for count, cell, name in order if cell == key]
        assert [count for count, _ in of_cell] == [1 + at // 2 for at in range(4 * pairs * rounds)]
        first = [name for _, name in of_cell[::2]]
        assert first.count("base") == pairs * rounds
        assert all(
            {name for _, name in of_cell[at : at + 2]} == set(names) for at in range(0, len(of_cell), 2)
        )


@given(NAMES, st.integers(1, 4), st.integers(1, 9))
def test_every_pass_measures_the_same_rounds_of_each_build(names: list[str], pairs: int, rounds: int) -> None:
    made = blocks(names, passes=2 * pairs, rounds=rounds)
    by_build = {
        name: sorted(
            n
            for one in made
            if one.build == name
            for n in range(one.first_round, one.first_round + one.rounds)
        )
        for name in names
    }
    assert set(map(tuple, by_build.values())) == {tuple(range(2 * pairs * rounds))}


def test_two_builds_run_a_b_b_a() -> None:
    assert [one.build for one in blocks(["a", "b"], passes=2, rounds=3)] == ["a", "b", "b", "a"]
    assert [one.first_round for one in blocks(["a", "b"], passes=2, rounds=3)] == [0, 0, 3, 3]


@pytest.mark.parametrize(
    ("names", "passes", "words"),
    [(["a"], 2, "two builds"), (["a", "a"], 2, "two builds"), (["a", "b"], 3, "even number")],
)
def test_an_order_that_cannot_cancel_drift_is_refused(names: list[str], passes: int, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        blocks(names, passes=passes, rounds=1)


CELLS = [CellKey(context, width) for context in (60, 1024, 8192) for width in (1, 8, 64)]


@given(st.floats(0.1, 100), st.floats(0, 1000), st.integers(1, 12))
def test_drift_is_looked_for_as_far_as_the_time_goes(seconds: float, left: float, most: int) -> None:
    chosen = drift_cells(CELLS, seconds, left, most=most)
    assert len(chosen) == len(set(chosen)) <= most
    assert len(chosen) * seconds <= left
    if len(chosen) > 1:
        assert {CELLS[0], CELLS[-1]} <= set(chosen)
    assert len(drift_cells(CELLS, seconds, math.inf, most=most)) == min(most, len(CELLS))


@given(st.floats(0.1, 500))
def test_time_for_the_most_is_time_for_all_of_them(seconds: float) -> None:
    """A multiple of the time of a cell that is divided by it again is below the whole number in one case of three."""
    assert len(drift_cells(CELLS, seconds, 4 * seconds, most=3)) == 3


def test_drift_is_what_the_same_rounds_give_later() -> None:
    rounds = [a_round(n, 100.0 + n, config="baseline") for n in range(3)]
    rounds += [a_round(n, 0.95 * (100.0 + n), config="baseline", again=1) for n in range(3)]
    (drift,) = drifts(rounds)
    assert (drift.config, drift.key) == ("baseline", KEY)
    assert drift.loss.share == pytest.approx(0.05)
    assert "-5.0% tok/s from beginning to end" in str(drift)
    assert drifts(rounds[:3]) == ()


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_what_no_activity_explains_is_the_harness() -> None:
    clock = Clock()
    ledger = Ledger(clock)
    clock.now += 1
    with ledger.during("verify"):
        clock.now += 10
        with ledger.during("flush"):
            clock.now += 2
        clock.now += 3
        ledger.add("start", 1.0)

    def failing_load() -> None:
        with ledger.during("load"):
            clock.now += 83
            raise KeyError

    with pytest.raises(KeyError):
        failing_load()
    clock.now += 1
    account = ledger.account()
    assert account.wall == 100
    assert account.parts == {"verify": 12.0, "flush": 2.0, "start": 1.0, "load": 83.0}
    assert account.harness == pytest.approx(2.0)
    assert str(account).startswith("harness overhead 2.0% of 100.0 s (")
    assert account.as_json()["share"] == pytest.approx(0.02)


def test_the_time_of_several_workers_is_added_up() -> None:
    accounts = [Account(100.0, {"start": 10.0, "load": 86.0}), Account(60.0, {"load": 58.0, "verify": 1.0})]
    of_workers = [
        [{"kind": "run"}, {"kind": "overhead", **one.as_json(), "text": str(one)}] for one in accounts
    ]
    records = list(merged([("group0", of_workers[0]), ("group1", of_workers[1])]))
    (told,) = [record for record in records if record["kind"] == "overhead"]
    assert told["parts_s"] == {"start": 10.0, "load": 144.0, "verify": 1.0}
    assert told["harness_s"] == pytest.approx(5.0)
    assert told["text"].startswith("harness overhead 3.1% of 160.0 s of 2 workers together (")


def test_workers_and_their_replacements_are_one_session() -> None:
    account = Account(100.0, {"load": 90.0})
    overhead = {"kind": "overhead", **account.as_json(), "text": str(account)}
    parts = [
        ("group0", [{"kind": "run"}, {"kind": "run"}, overhead]),
        ("group1", [{"kind": "run"}, overhead]),
    ]
    records = [{"schema": 2, **record} for record in merged(parts)]
    found = rebuild(Stored(tuple(records), 0, 0), Path("x/results.jsonl"))
    assert found.sessions == 1
    assert "of 200.0 s of 2 workers together (" in found.results.overhead


@pytest.mark.parametrize("choosing", [(), (0,), (1,), (0, 1)])
def test_prompts_that_one_group_chooses_cost_no_other_group_its_rounds(choosing: tuple[int, ...]) -> None:
    parts = []
    for place, config in enumerate(("b4-k4-wnone", "b8-k4-wnone")):
        records: list[dict[str, Any]] = [{"kind": "run"}]
        first = a_round(0, 100.0, config="baseline")
        chosen = {"kind": "prompts", "workload": KEY.prompts, "context_tokens": KEY.context, "indices": [7]}
        if place in choosing:
            records += [{"kind": "round", "round": first.as_json()}, chosen]
        for one in (a_round(0, 200.0, config="baseline"), a_round(0, 300.0, config=config)):
            records.append({"kind": "round", "round": one.as_json()})
        parts.append((f"group{place}", records))
    records = [{"schema": 2, **record} for record in merged(parts)]
    cells = rebuild(Stored(tuple(records), 0, 0), Path("x/results.jsonl")).results.cells
    assert {config: figures.tok_s_rounds for (config, _), figures in cells.items()} == {
        "baseline": pytest.approx((200.0,)),
        "b4-k4-wnone": pytest.approx((300.0,)),
        "baseline@group1": pytest.approx((200.0,)),
        "b8-k4-wnone": pytest.approx((300.0,)),
    }


@pytest.mark.parametrize(
    ("sessions", "says"),
    [
        (1, "harness overhead 4.0% of 100.0 s ("),
        (2, "harness overhead 3.1% of 160.0 s in 2 sessions of this run ("),
        (4, "harness overhead 3.1% of 160.0 s in 2 of 4 sessions of this run ("),
    ],
)
def test_the_time_of_a_run_is_that_of_all_its_sessions(sessions: int, says: str) -> None:
    """As the server starts and the rounds are; a session that was killed left no account."""
    accounts = [Account(100.0, {"start": 10.0, "load": 86.0}), Account(60.0, {"load": 58.0, "verify": 1.0})]
    records: list[dict[str, object]] = []
    for number in range(sessions):
        records.append({"schema": 2, "kind": "run", "started": "2026-01-01"})
        if number < len(accounts):
            one = accounts[number]
            records.append({"schema": 2, "kind": "overhead", **one.as_json(), "text": str(one)})
    stored = rebuild(Stored(tuple(records), 0, 0), Path("x/results.jsonl"))
    assert stored.results.overhead.startswith(says)


@given(st.lists(st.tuples(st.sampled_from(["start", "verify", "load"]), st.floats(0, 10)), max_size=20))
def test_activities_never_add_up_to_more_than_there_was(steps: list[tuple[str, float]]) -> None:
    clock = Clock()
    ledger = Ledger(clock)

    def go(left: list[tuple[str, float]]) -> None:
        if not left:
            return
        with ledger.during(left[0][0]):  # type: ignore[arg-type]
            clock.now += left[0][1]
            go(left[1:])
            clock.now += left[0][1]

    go(steps)
    account = ledger.account()
    assert sum(account.parts.values()) == pytest.approx(account.wall)
    assert account.share == pytest.approx(0.0, abs=1e-9)


@given(st.lists(st.integers(1, 64), min_size=1, max_size=12, unique=True))
def test_a_fair_order_keeps_everything_and_the_first_in_its_place(budgets: list[int]) -> None:
    order = fair(budgets, lambda budget: (budget, None))
    assert sorted(order) == sorted(budgets)
    assert order[0] == budgets[0]
    assert order == fair(budgets, lambda budget: (budget, None))


def test_no_knob_of_a_sweep_goes_with_time() -> None:
    grid = [(budget, topk, window) for window in (0, 2048) for topk in (4, 8) for budget in (8, 16, 32)]

    def lean(order: Sequence[tuple[int, int, int]], knob: int) -> float:
        return abs(statistics.correlation(range(len(order)), [point[knob] for point in order]))

    assert max(lean(grid, knob) for knob in range(3)) > 0.8
    assert max(lean(fair(grid, lambda point: point), knob) for knob in range(3)) < 0.1


def test_three_budgets_do_not_go_up_or_down() -> None:
    assert fair(
        ["chain", "b4", "b8", "b16"], lambda name: (float(name[1:]) if name != "chain" else None,)
    ) not in (
        ("chain", "b4", "b8", "b16"),
        ("chain", "b16", "b8", "b4"),
    )
