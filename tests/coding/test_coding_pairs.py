"""What a pair of answers means, what is counted, and what the comparison leaves out."""

from __future__ import annotations

from dataclasses import replace

import pytest
from coding_answers import CODE, pair, solved, verdict

from pytest_ddtree.coding.counters import count
from pytest_ddtree.coding.pairs import TOLERATED, Pair, compare_pairs
from pytest_ddtree.coding.stats import Gate
from pytest_ddtree.coding.summary import summarise, summary_from_json
from pytest_ddtree.exactness.verdict import VerdictKind

GATE = Gate(alpha=0.05, margin=0.02)


@pytest.mark.parametrize(
    ("base", "other", "kind", "judgement"),
    [
        ("pass", "pass", "exact", "fine"),
        ("pass", "pass", "tie", "fine"),
        ("wrong", "wrong", "tie", "fine"),
        ("wrong", "pass", "tie", "fine"),
        ("pass", "wrong", "tie", "rounding"),
        ("pass", "pass", "corrupt", "corrupt"),
        ("pass", "wrong", "corrupt", "corrupt"),
        ("wrong", "pass", "corrupt", "corrupt"),
        ("truncated", "truncated", "corrupt", "corrupt"),
        ("truncated", "truncated", "exact", "cut"),
        ("truncated", "truncated", "tie", "cut"),
        ("pass", "truncated", "tie", "rounding"),
        ("truncated", "pass", "tie", "fine"),
        ("pass", "wrong", "exact", "unreliable"),
        ("pass", "pass", "unknown", "unjudged"),
        ("pass", "wrong", "unknown", "unjudged"),
        ("pass", "pass", None, "fine"),
        ("pass", "wrong", None, "unexplained"),
    ],
)
def test_judgement(base: str, other: str, kind: VerdictKind | None, judgement: str) -> None:
    assert pair(base, other, kind).judgement == judgement


def test_lost_with_other_tokens_that_no_tie_explains_is_lost() -> None:
    lost = Pair(
        baseline=solved("pass"), other=solved("wrong", (1, 2, 4), CODE + "!"), verdict=verdict("exact")
    )
    assert lost.judgement == "lost"


def test_the_same_tokens_with_another_text_are_garbled_though_the_code_passes() -> None:
    """Lost or repeated chunks leave ids and counts right; a text that still runs must not hide them."""
    spoilt = Pair(baseline=solved(), other=solved(text=CODE + "# again"), verdict=verdict("exact"))
    assert spoilt.judgement == "garbled"
    assert "garbled" not in TOLERATED
    assert summarise("b8", [spoilt], GATE).corrupt == 1


def test_an_answer_that_is_not_what_the_server_counted_is_corrupt_though_its_code_passes() -> None:
    said = "the server counted 3 tokens but sent 6 token ids"
    for outcome, finish, judgement in (
        ("malformed", {"type": "stop"}, "corrupt"),
        ("short", {"type": "length"}, "corrupt"),
        ("malformed", None, "fine"),  # It did not end: nothing came that could contradict itself.
    ):
        other = solved()
        record = replace(other.record, outcome=outcome, error=said, finish_reason=finish)
        judged = Pair(baseline=solved(), other=replace(other, record=record), verdict=None)
        assert judged.judgement == judgement
        assert (said in judged.describe()) == (judgement == "corrupt")


def test_a_failure_shows_both_codes_and_why() -> None:
    shown = pair("pass", "wrong", "tie").describe()
    assert "rounding" in shown
    assert shown.count("def f():") == 2
    assert "--- baseline: pass" in shown
    assert "--- this config: wrong" in shown


class TestAskedAgain:
    def test_the_majority_counts_on_each_side(self) -> None:
        again = pair("pass", "wrong", other_again=(solved(), solved()), baseline_again=(solved(), solved()))
        assert (again.baseline_passes, again.other_passes) == (True, True)
        assert again.judgement == "fine"
        assert again.reruns() == "p: loss, not confirmed: passed 3 of 3 on the baseline, 2 of 3 here"

    def test_gains_are_asked_again_like_losses(self) -> None:
        again = pair("wrong", "pass", other_again=(solved("wrong"), solved("wrong")))
        assert again.other_passes is False
        assert again.reruns() == "p: gain, not confirmed: passed 0 of 1 on the baseline, 1 of 3 here"

    def test_the_first_answer_decides_a_draw(self) -> None:
        assert pair("pass", "wrong", other_again=(solved(),)).other_passes is False
        assert pair("wrong", "pass", other_again=(solved("wrong"),)).other_passes is True

    def test_the_gate_counts_majorities(self) -> None:
        flaky = pair("pass", "wrong", other_again=(solved(), solved()))
        assert compare_pairs([flaky, pair("pass", "wrong")], GATE).losses == 1


def test_problems_cut_on_both_sides_are_left_out_of_the_comparison_and_said_so() -> None:
    pairs = [pair("truncated", "truncated"), pair("pass", "pass"), pair("pass", "truncated")]
    compared = compare_pairs(pairs, GATE)
    assert (compared.n, compared.losses) == (2, 1)
    notes = summarise("b8", pairs, GATE).notes
    assert any(note.startswith("1 problems ran into the token limit on both sides") for note in notes)


def test_a_summary_with_nothing_but_cut_answers_says_so() -> None:
    assert (
        summarise("b8", [pair("truncated", "truncated")], GATE).comparison
        == "every answer was cut at its token limit"
    )


def test_a_summary_survives_storage() -> None:
    summary = summarise("b8", [pair("pass", "wrong", other_again=(solved(),)), pair("pass", "pass")], GATE)
    assert summary_from_json(summary.as_json()) == summary
    assert any(note.startswith("1 flipped problems asked 1 more times") for note in summary.notes)


class TestCounters:
    def test_each_kind_is_counted_pairwise(self) -> None:
        rows = [
            (solved(), solved("truncated", finish="length")),
            (solved("truncated", finish="length"), solved()),
            (solved(), solved("timeout")),
            (solved(), solved()),
        ]
        counted = {
            one.name: (one.baseline, one.other, one.here_alone, one.there_alone) for one in count(rows, GATE)
        }
        assert counted == {"truncated": (1, 1, 1, 1), "no_code": (1, 1, 1, 1), "timeout": (0, 1, 1, 0)}

    def test_growth_beyond_chance_fails_and_few_do_not(self) -> None:
        cut = (solved(), solved("truncated", finish="length"))
        fine = (solved(), solved())
        # 2^-6 is below 0.05 / 3, 2^-5 is not.
        for times, failed in ((5, False), (6, True)):
            (truncated, *_) = count([cut] * times + [fine] * 20, GATE)
            assert truncated.failed is failed
            assert (
                str(truncated)
                == f"truncated 0 -> {times} (here alone {times}, baseline alone 0, p={0.5**times:.3g})"
            )

    def test_less_of_it_never_fails(self) -> None:
        assert not any(one.failed for one in count([(solved("timeout"), solved())] * 30, GATE))
