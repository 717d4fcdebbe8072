"""What a plan says of a comparison of builds is what the comparison does."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from pytest_ddtree.ab import Ab
from pytest_ddtree.ab_cost import AbCost
from pytest_ddtree.grid import CellKey, Config
from pytest_ddtree.options import make_settings
from pytest_ddtree.results.builds import BuildSpec
from pytest_ddtree.results.order import blocks
from pytest_ddtree.results.taking_turns import AbDesign

COST = AbCost(
    builds=("base", "patched"),
    configs=("b8-k4-wnone",),
    cells=(CellKey(60, 2),),
    passes=2,
    rounds=6,
    min_rounds=2,
    turnovers=2,
    prompts=8,
    flags_may_differ=False,
)


def certain(cost: AbCost) -> int:
    return sum(start.times for start in cost.starts() if start.certain)


def maybe(cost: AbCost) -> int:
    return sum(start.times for start in cost.starts() if not start.certain)


@given(st.integers(2, 4), st.integers(1, 4), st.integers(1, 4))
def test_the_starts_are_those_of_the_turns_and_a_baseline_of_each_build(
    builds: int, configs: int, pairs: int
) -> None:
    names = tuple(f"build{number}" for number in range(builds))
    cost = replace(COST, builds=names, configs=tuple(f"b{n}" for n in range(configs)), passes=2 * pairs)
    design = AbDesign(rounds=cost.stay_rounds, passes=cost.passes, alpha=0.001, configs=configs, headline=())
    asked, most = (len(blocks(names, passes=n, rounds=cost.stay_rounds)) for n in (design.passes, design.cap))
    assert certain(cost) == builds + configs * asked
    assert certain(cost) + maybe(cost) == builds + configs * most


@given(st.integers(2, 40), st.integers(1, 6))
def test_a_stay_has_the_rounds_that_the_comparison_gives_it(rounds: int, pairs: int) -> None:
    given_options = {"rounds": str(rounds), "min_rounds": "2", "results": "/nowhere"}
    settings = make_settings({name: (text, "command line") for name, text in given_options.items()})
    specs = [BuildSpec(name, "args", "") for name in COST.builds]
    config = Config("tree", 8, 4)
    ab = Ab(settings, specs, (config,), COST.cells, passes=2 * pairs, progress=print)
    assert replace(COST, rounds=rounds, passes=2 * pairs).stay_rounds == ab._design.rounds
    assert not Path("/nowhere").exists()


def test_rounds_and_requests_go_from_the_passes_asked_for_to_the_most() -> None:
    rounds, requests, answers = COST.counts()
    # Four stays of three rounds, and a baseline of two to three; at most four times the stays.
    assert (rounds.least, rounds.most) == (4 * 3 + 2, 16 * 3 + 3)
    # Two streams, each a warm-up and two requests a round.
    assert (requests.least, requests.most) == (2 * (4 * 7 + 5), 2 * (16 * 7 + 7))
    # Both builds 13 by their own baseline, the other one 8 by the base's recorded answers.
    assert (answers.least, answers.most) == (34, 34)
    assert COST.serial_requests > requests.most // 2 + answers.most


def test_another_start_of_the_baseline_is_needed_only_where_flags_differ() -> None:
    cost = replace(COST, flags_may_differ=True)
    assert (certain(cost), maybe(cost)) == (certain(COST), maybe(COST) + 1)
    assert "best-baseline" in "\n".join(map(str, cost.starts()))


def test_builds_that_are_up_at_once_warm_up_for_each_round() -> None:
    cost = replace(COST, at_once=True)
    (_, requests, _), (_, in_turns, _) = cost.counts(), COST.counts()
    # Three rounds a stay of two requests each, before each of which a stream has one more.
    assert requests.least == 2 * (4 * 9 + 5)
    assert requests.most - in_turns.most == 2 * 16 * 2
    assert certain(cost) == certain(COST)
    assert "up at once" in "\n".join(map(str, cost.starts()))
    assert cost.serial_requests > COST.serial_requests
