"""Best baseline, chain and tree side by side: which rows there are, and that the ratios are those of the figures."""

from __future__ import annotations

from dataclasses import replace

import pytest
from made import KEY, a_cell

from pytest_ddtree.exactness.verdict import Verdict
from pytest_ddtree.grid import CellKey
from pytest_ddtree.report import github, html
from pytest_ddtree.report.findings import Report
from pytest_ddtree.report.terminal import lines
from pytest_ddtree.report.threeway import chain_of, three_ways
from pytest_ddtree.results.model import Results, Round

WARM = CellKey(60, 4, "chat", 0.6, "", "warm")


def results(**rates: float) -> Results:
    found = Results()
    for name, rate in rates.items():
        config = name.replace("_", "-")
        for key in (KEY, WARM):
            found.cells[(config, key)] = a_cell([rate, rate], config=config, key=key, cache=key.cache)
    return found


def test_a_row_says_tok_s_and_both_speedups_of_every_tree() -> None:
    tables = three_ways(results(baseline=100.0, chain_wnone=200.0, b16_k4_wnone=150.0, b8_k4_wnone=300.0))
    assert [(one.chain, one.conditions) for one in tables] == [
        ("chain-wnone", "code, temperature 0, cache flushed"),
        ("chain-wnone", "chat, temperature 0.6, cache warm"),
    ]
    for one in tables:
        assert one.rows == (
            (
                "60",
                "4",
                "100.0 ±0%",
                "200.0 ±0%",
                "2.00 ±0%",
                "b8-k4-wnone",
                "300.0 ±0%",
                "3.00 ±0%",
                "1.50 ±0%",
            ),
            (
                "60",
                "4",
                "100.0 ±0%",
                "200.0 ±0%",
                "2.00 ±0%",
                "b16-k4-wnone",
                "150.0 ±0%",
                "1.50 ±0%",
                "0.75 ±0%",
            ),
        )


def test_a_tree_is_set_against_the_chain_of_its_own_window() -> None:
    assert chain_of("b8-k4-w2048-s16") == "chain-w2048-s16"
    (one, _) = three_ways(results(chain_w128=200.0, b8_k4_w128=300.0, b8_k4_wnone=400.0))
    assert [row[5] for row in one.rows] == ["b8-k4-w128"]
    assert one.rows[0][2] == "-"


def test_without_a_chain_there_is_no_table() -> None:
    assert three_ways(results(baseline=100.0, b8_k4_wnone=300.0)) == []


def test_a_corrupt_side_gives_no_row() -> None:
    verdict = Verdict(
        kind="corrupt", level="full", config="chain-wnone", prompts=4, identical=0, tokens=9, off=9, largest=9.0, gap_limit=1.0,
        floor_largest=0.0, floor_share=0.0, floor_tokens=99, p_share=0.0,
    )  # fmt: skip
    found = results(baseline=100.0, chain_wnone=200.0, b8_k4_wnone=300.0)
    found.verdicts["chain-wnone"] = [verdict]
    assert three_ways(found) == []


def test_every_report_has_it_and_tables_by_condition() -> None:
    found = results(baseline=100.0, chain_wnone=200.0, b8_k4_wnone=300.0)
    text = "\n".join(lines(found))
    assert "best baseline | chain-wnone | tree: tok/s, chat, temperature 0.6, cache warm" in text
    assert "b8-k4-wnone: code, temperature 0, cache flushed" in text
    assert "b8-k4-wnone: chat, temperature 0.6, cache warm" in text
    report = Report(found)
    assert "Best baseline, chain and tree" in html.page(report)
    assert "Best baseline, chain and tree" in github.markdown(report)


@pytest.mark.parametrize("key", [KEY, WARM, CellKey(60, 4, "code", 0.6, "model", "untouched")])
def test_a_stored_round_comes_back_with_its_cell(key: CellKey) -> None:
    (one,) = a_cell([500.0], key=key, cache=key.cache).rounds
    assert Round.from_json(one.as_json()) == one


def test_a_round_without_a_prefix_cache_belongs_to_the_flushed_cell() -> None:
    (one,) = a_cell([500.0], cache="radix off").rounds
    assert Round.from_json(one.as_json()) == one


def test_what_a_table_does_not_show_is_said_below_it() -> None:
    found = Results()
    figures = replace(a_cell([100.0, 101.0, 99.0, 100.0, 60.0], config="baseline"), stopped="max_rounds")
    found.cells[("baseline", KEY)] = figures
    text = "\n".join(lines(found))
    assert "stopped at the cap of rounds, short of the precision asked for: every cell" in text
    assert "outlier, counted all the same: ctx60-c4 round 5: 60.0 tok/s (the others 99.0 to 101.0)" in text
    assert figures.requests == 20


@pytest.mark.parametrize(("after", "said"), [(0, False), (5, False), (10, True)])
def test_tokens_beyond_the_natural_end_are_said_below_the_table(after: int, said: bool) -> None:
    found = Results()
    # 2 rounds of 256 tokens each.
    found.cells[("baseline", KEY)] = a_cell([100.0, 101.0], config="baseline", tokens_after_end=after)
    text = "\n".join(lines(found))
    assert (f"ctx60-c4: {after / 256:.1%} of its tokens came after the natural end" in text) == said


def test_gaps_and_prefill_travel_with_the_rounds() -> None:
    figures = a_cell([100.0, 100.0], chunk_gap_s=(0.01, 0.02, 0.03, 0.5), prefill_tok_s=900.0)
    assert figures.as_json()["chunk_gap_s"] == {"p50": 0.01, "p90": 0.02, "p99": 0.03}
    assert figures.as_json()["prefill_tok_s"] == pytest.approx(900.0)
    assert Round.from_json(figures.rounds[0].as_json()) == figures.rounds[0]
    old = {name: value for name, value in figures.rounds[0].as_json().items() if name != "chunk_gap_s"}
    assert Round.from_json(old).chunk_gap_s == ()
