"""Two builds of one session: the right one is blamed, both ways round, and unchanged ones are left alone."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

from made import a_round

from pytest_ddtree.grid import CellKey
from pytest_ddtree.report.comparison import lines
from pytest_ddtree.results.change import Comparison
from pytest_ddtree.results.compare import compare
from pytest_ddtree.results.metrics import ACCEPT
from pytest_ddtree.results.model import Results
from pytest_ddtree.results.order import blocks
from pytest_ddtree.results.runs import cells_of

CONFIG = "b8-k4-wnone"
BLOCK = [8]
CELLS = [CellKey(context, width) for context in (60, 512, 2048) for width in (1, 4, 8, 16)]


def a_session(
    seed: int,
    slow: dict[CellKey, float],
    *,
    rounds: int = 8,
    drift: float = 0.01,
    stays: Sequence[float] = (0.0,) * 4,
) -> dict[str, Results]:
    """A B B A on a machine that slows down by `drift` a stay; `slow` is what the patched build loses, `stays` what each stay gains."""
    BLOCK[0] = rounds
    generator = random.Random(seed)
    prompts = {(key, number): generator.gauss(0, 0.1) for key in CELLS for number in range(2 * rounds)}
    measured: dict[str, list[object]] = {"base": [], "patched": []}
    for place, block in enumerate(blocks(["base", "patched"], passes=2, rounds=rounds)):
        restart = generator.gauss(0, 0.002) + stays[place]
        for key in CELLS:
            for number in range(block.first_round, block.first_round + block.rounds):
                lost = math.log1p(-slow.get(key, 0.0)) if block.build == "patched" else 0.0
                log = (
                    math.log(200)
                    + prompts[key, number]
                    + restart
                    - drift * place
                    + lost
                    + generator.gauss(0, 0.02)
                )
                rate = math.exp(log)
                one = a_round(
                    number,
                    rate,
                    key=key,
                    build=block.build,
                    ttft_s=(20 / rate,) * 4,
                    time_per_token_s=(1 / rate,) * 4,
                )
                measured[block.build].append(one)
    return {build: Results(cells=cells_of(of)) for build, of in measured.items()}  # type: ignore[arg-type]


def ab(session: dict[str, Results], *, turned: bool = False) -> Comparison:
    names = ("patched", "base") if turned else ("base", "patched")
    return compare(
        session[names[0]],
        session[names[1]],
        names=names,
        same_session=True,
        starts=(2, 2),
        block_rounds=BLOCK[0],
    )


def test_three_percent_everywhere_are_blamed_on_the_patched_build_both_ways_round() -> None:
    session = a_session(1, dict.fromkeys(CELLS, 0.03), rounds=15)
    (change, *_) = ab(session).beyond_noise
    assert (change.key, change.outcome) == (None, "worse")
    assert change.ratio[1] < 0.97 < change.ratio[2]
    (change, *_) = ab(session, turned=True).beyond_noise
    assert (change.key, change.outcome) == (None, "better")


def test_ten_percent_in_one_cell_are_found_and_named() -> None:
    found = ab(a_session(2, {CELLS[5]: 0.10}, rounds=15)).beyond_noise
    assert {change.key for change in found if change.key is not None} == {CELLS[5]}
    assert found[0].where == f"{CONFIG} {CELLS[5].id}"
    assert {change.metric.name for change in found} <= {"tok_s", "ms_per_token_p90"}


def test_unchanged_builds_show_nothing_whatever_the_machine_does() -> None:
    alarms = [bool(ab(a_session(seed, {}, drift=0.03)).beyond_noise) for seed in range(100, 140)]
    assert sum(alarms) == 0


def test_prompts_that_differ_in_difficulty_cancel() -> None:
    changes = ab(a_session(3, {})).changes
    # The prompts alone vary by 10 %; unpaired, no interval of 16 rounds could be narrower than 5 %.
    assert all(change.loss.error < 0.02 for change in changes)


def test_a_corrupt_build_has_no_speed_to_compare() -> None:
    session = a_session(4, {})
    from test_runs import VERDICT

    session["patched"].verdicts[CONFIG] = [VERDICT]
    comparison = ab(session)
    assert comparison.changes == ()
    assert len(comparison.only_before) == len(CELLS)
    assert all(where.endswith(" (corrupt in patched)") for where in comparison.only_before)
    assert comparison.only_now == tuple(f"{CONFIG} {key.id} (corrupt)" for key in CELLS)
    assert "corrupt on the other side" not in "\n".join(lines(comparison))
    session["base"].verdicts[CONFIG] = [VERDICT]
    assert ab(session).only_before == comparison.only_now, "nor is it only on one side"


def test_across_sessions_ten_percent_are_tolerated_while_starts_are_few() -> None:
    session = a_session(5, dict.fromkeys(CELLS, 0.06))
    across = compare(session["base"], session["patched"], names=("monday", "tuesday"), same_session=False)
    assert across.beyond_noise == ()
    assert all("fewer than 5" in change.tolerance.why for change in across.changes)


def test_a_machine_that_is_not_quiet_blames_nobody() -> None:
    blamed = []
    for seed in range(40):
        session = a_session(seed, {}, drift=0.0, stays=(0.0, 0.45, 0.50, 0.10))
        comparison = ab(session)
        assert comparison.unrest is not None
        blamed += [change.where for change in comparison.beyond_noise if change.metric is not ACCEPT]
    assert not blamed
    assert "not quiet" in "\n".join(lines(comparison))


def test_a_quiet_machine_is_called_so() -> None:
    restless = sum(ab(a_session(seed, {}, drift=0.002)).unrest is not None for seed in range(40))
    assert restless <= 4


def test_what_all_cells_have_together_is_one_figure_however_many_stays_there_were() -> None:
    """Of ten stays the extreme ones are left out, which rounds are not: the sentence of the gate had both."""
    generator = random.Random(6)
    sides = []
    for _ in range(2):
        rounds = [
            a_round(number, 200 * math.exp(generator.gauss(0, 0.02)), key=key)
            for number in range(20)
            for key in CELLS[:2]
        ]
        sides.append(Results(cells=cells_of(rounds)))
    found = compare(*sides, names=("base", "patched"), same_session=True, block_rounds=2)
    pooled = found.changes[0]
    assert found.unrest is None
    assert pooled.stays is not None
    assert pooled.shown is pooled.stays
    assert abs(pooled.stays.mean - pooled.loss.mean) > 1e-4
    assert math.isclose(pooled.now / pooled.before, pooled.ratio[0])
