"""Rounds whose prompts nobody chose: a config bears what its baseline would choose other prompts for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from scripted_server import Asked, Script, as_json, generate_events, stream

from pytest_ddtree.grid import CellKey
from pytest_ddtree.measuring import measure_rounds, refuse_unnatural_rounds
from pytest_ddtree.model_files import REFERENCE_WEIGHTS
from pytest_ddtree.results.model import Round
from pytest_ddtree.workload.cell import CellSpec, UnnaturalAnswers
from pytest_ddtree.workload.endings import UNCHOSEN, EndingLimits
from pytest_ddtree.workload.prompts import PromptMaker
from pytest_ddtree.workload.rounds import SamplingRule

END = 2
SPEC = CellSpec(context=60, concurrency=4, output=40, turnovers=8, jitter=0.0, stagger=False)
EARLY = (40, 60)
"""Which requests end at once: two of the 32 of the second round, behind 4 of warm-up and 32 of the first one."""


TWO = SamplingRule(min_rounds=2, max_rounds=2)
LOOP = [7, 8] * 20


def measured(
    serve: Any,
    kept: list[Round],
    limits: EndingLimits | None,
    *,
    rule: SamplingRule = TWO,
    early: Sequence[int] = EARLY,
    loops: Sequence[int] = (),
    before: Sequence[Round] = (),
    certain: int = 0,
) -> None:
    """Rounds through the path of the plugin."""
    prompts: dict[tuple[int, ...], int] = {}

    def answer(asked: Asked) -> Script:
        if asked.path != "/generate":
            return as_json({})
        number = prompts.setdefault(tuple(asked.json["input_ids"]), len(prompts))
        ids = (
            [END, *range(100, 139)] if number in early else LOOP if number in loops else list(range(100, 140))
        )
        return stream(generate_events([ids[:20], ids[20:]], finish={"type": "length"}), gap_s=0.01)

    _, client = serve(answer)
    client.loop.run(
        measure_rounds(
            client.asynchronous,
            PromptMaker(REFERENCE_WEIGHTS / "target"),
            CellKey(context=60, concurrency=4),
            SPEC,
            rule,
            config="b8-k4-wnone",
            eos=frozenset({END}),
            keep=kept.append,
            before=before,
            client_lag=10.0,
            natural_limits=limits,
            certain=certain,
        )
    )


def test_a_config_bears_early_ends_that_are_few_in_its_cell(serve: Any) -> None:
    kept: list[Round] = []
    measured(serve, kept, None)
    assert [one.tokens_after_end for one in kept] == [0, 2 * 39]


def test_a_server_that_can_choose_prompts_does_not(serve: Any) -> None:
    kept: list[Round] = []
    with pytest.raises(UnnaturalAnswers, match=r"ctx60-c4: 6\.1% of the output tokens .* \(at most 2\.0%\)"):
        measured(serve, kept, UNCHOSEN)
    assert [one.tokens_after_end for one in kept] == [0]


def test_loops_are_weighed_against_all_answers_that_a_cell_will_have(serve: Any) -> None:
    """Two of 32 are too many, two of 64 are not, also when both are in the first of two rounds."""
    kept: list[Round] = []
    measured(serve, kept, None, early=(), loops=(4, 5))
    assert [one.looping for one in kept] == [2, 0]
    stored = [Round.from_json(one.as_json()) for one in kept]
    refuse_unnatural_rounds(stored)
    with pytest.raises(UnnaturalAnswers, match="b8-k4-wnone ctx60-c4: 2 of 32 answers end in a loop"):
        refuse_unnatural_rounds(stored[:1])
    refuse_unnatural_rounds([replace(stored[0], looping=None)])


def test_rounds_that_did_not_come_bear_no_loops(serve: Any) -> None:
    kept: list[Round] = []
    over = SamplingRule(min_rounds=4, max_rounds=4, max_seconds=0.01)
    with pytest.raises(UnnaturalAnswers, match="2 of 32 answers end in a loop"):
        measured(serve, kept, None, rule=over, early=(), loops=(4, 5))
    assert [one.looping for one in kept] == [2]


def test_a_round_that_is_measured_alone_is_weighed_against_those_that_follow_in_later_calls(
    serve: Any,
) -> None:
    kept: list[Round] = []
    one, two = (SamplingRule(min_rounds=count, max_rounds=count) for count in (1, 2))
    measured(serve, kept, None, rule=one, early=(), loops=(4, 5), certain=2)
    measured(serve, kept, None, rule=two, early=(), before=tuple(kept), certain=2)
    assert [one.looping for one in kept] == [2, 0]
    with pytest.raises(UnnaturalAnswers, match="2 of 32 answers end in a loop"):
        measured(serve, [], None, rule=one, early=(), loops=(4, 5))


def test_loops_of_rounds_measured_before_count(serve: Any) -> None:
    kept: list[Round] = []
    measured(serve, kept, None, early=(), loops=(4, 5))
    with pytest.raises(UnnaturalAnswers, match="6 of 96 answers end in a loop"):
        measured(
            serve,
            [],
            None,
            rule=SamplingRule(min_rounds=3, max_rounds=3),
            early=(),
            loops=(4, 5, 6, 7),
            before=kept,
        )
