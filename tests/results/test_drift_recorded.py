"""What becomes expected at the end of a session, and how later ones see a drift of it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from made import KEY, a_cell
from made_gates import CONFIG, PRINT, accepted, keeper, rates, recorded

from pytest_ddtree.exactness.verdict import Verdict
from pytest_ddtree.report import jsonreport
from pytest_ddtree.results.entries import setting_of
from pytest_ddtree.results.expected import Expected, Sample
from pytest_ddtree.results.expected import Key as EntryKey
from pytest_ddtree.results.gatekeeper import (
    RECORDED,
)
from pytest_ddtree.results.model import CellFigures, Results


def test_five_accepted_losses_of_two_percent_fail_as_drift(tmp_path: Path) -> None:
    means: Sequence[float] = [200.0 * 0.98**step for step in range(6)]
    expected = Expected(tmp_path / "e")
    key = EntryKey(setting_of(PRINT), CONFIG, KEY.id)
    for step, mean in enumerate(means):
        values = dict(enumerate(rates(mean)))
        # Each accepted loss was another build, and six quiet starts of each say how much a restart does.
        for start in range(3):
            shifted = {number: rate * (1 + start / 2000) for number, rate in values.items()}
            expected.add(key, Sample(f"2026-01-{step + 1:02}", f"rev{step}", {"tok_s": shifted}))
    outcome = keeper(expected).check(a_cell(rates(means[-1], seed=4)), None)
    assert len(outcome.failures) == 1
    assert "best of the last samples" in outcome.failures[0]
    recorded(expected, a_cell(rates(means[-1], seed=4)), accept_drift="costs that much")
    assert not keeper(expected).check(a_cell(rates(means[-1], seed=5)), None).failures


def test_accepting_a_drift_without_saying_so_is_warned_of_at_once(tmp_path: Path) -> None:
    expected = accepted(tmp_path / "e", 200.0)
    (drift,) = [text for text in recorded(expected, a_cell(rates(150.0, seed=2))).drifts if "tok_s" in text]
    assert "a later session that shows the same as clearly fails" in drift
    assert "--ddtree-accept-drift" in drift
    # And so it does.
    (failure,) = keeper(expected).check(a_cell(rates(150.0, seed=2)), None).failures
    assert "best of the last samples" in failure
    again = accepted(tmp_path / "f", 200.0)
    assert not recorded(again, a_cell(rates(150.0, seed=2)), accept_drift="known").drifts
    assert not keeper(again).check(a_cell(rates(150.0, seed=2)), None).failures


def test_a_drift_that_is_undecided_is_said_like_any_other_gate(tmp_path: Path) -> None:
    """Recorded with a slow build; the next one is 18 % below the best sample, which its noise neither proves nor excludes."""
    expected = accepted(tmp_path / "e", 200.0)
    recorded(expected, a_cell(rates(80.0, seed=2)))
    now = a_cell(rates(164.0, noise=0.06, seed=3))
    outcome = keeper(expected).check(now, None)
    assert not outcome.failures
    (warning,) = [text for text in outcome.warnings if "tok_s" in text]
    assert "tok_s undecided: " in warning
    assert "best of the last samples" in warning
    strict = keeper(expected, strict=True).check(now, None)
    assert [text for text in strict.failures if "tok_s" in text] == [warning]
    # What is recorded without a proof is not said to fail.
    unsure = [text for text in recorded(expected, now).drifts if "tok_s" in text]
    assert len(unsure) == 1
    assert "recorded, though it may be a drift: " in unsure[0]
    assert "fails" not in unsure[0]


def test_a_drift_is_measured_on_as_far_as_the_best_sample_goes(tmp_path: Path) -> None:
    expected = Expected(tmp_path / "e")
    recorded(expected, a_cell(rates(200.0, 16, noise=0.01)))
    recorded(expected, a_cell(rates(60.0, 4, noise=0.01)))
    asked: list[int] = []

    def more(rounds: int) -> tuple[CellFigures, None]:
        asked.append(rounds)
        return a_cell(rates(176.0, rounds, noise=0.05, seed=5)), None

    outcome = keeper(expected).check(more(4)[0], None, more)
    assert asked == [4, 8, 16]
    (gate,) = [one for one in outcome.gates if one.metric == "tok_s" and "best of" in str(one)]
    assert "n=16" in str(gate)


def test_a_drift_that_is_fine_is_a_gate_so_that_it_takes_the_place_of_an_undecided_one(
    tmp_path: Path,
) -> None:
    expected = accepted(tmp_path / "e", 200.0, 199.0)
    gates = keeper(expected).check(a_cell(rates(199.0, seed=2)), None).gates
    against = [str(one.as_json()["against"]) for one in gates if one.metric == "tok_s"]
    assert against == ["expected 2026-03-01", "best of the last samples, 2026-03-01"]
    names = [name for name, _ in jsonreport.properties(a_cell([1.0]), [one.as_json() for one in gates])]
    assert len(set(names)) == len(names)
    assert {"ddtree.gate.tok_s", "ddtree.gate.tok_s.drift"} <= set(names)


def test_what_is_recorded_is_what_the_session_ends_with(tmp_path: Path) -> None:
    """Rounds that were added to a cell after it was judged, for the speedup of another config, are recorded too."""
    expected = Expected(tmp_path / "e")
    gatekeeper = keeper(expected, update="all")
    early = a_cell(rates(300.0, 3), config="baseline", verify_steps=None)
    late = a_cell([*early.tok_s_rounds, *rates(230.0, 13, seed=4)], config="baseline", verify_steps=None)
    fast = a_cell(rates(500.0, 16))
    gatekeeper.check(early, early)
    gatekeeper.check(fast, late)
    results = Results(cells={("baseline", KEY): late, (CONFIG, KEY): fast})
    recording = gatekeeper.record(results)
    for sample, figures in zip(recording.samples.values(), (late, fast), strict=True):
        assert sample.mean("tok_s") == pytest.approx(figures.tok_s.value)
        assert len(sample.values["tok_s"]) == 16
    speedup = results.speedup(CONFIG, KEY)
    assert speedup is not None
    (_, of_fast) = recording.samples.values()
    assert of_fast.mean("speedup") == pytest.approx(speedup.value)
    assert [history[-1] for history in expected.entries.values()] == list(recording.samples.values())


def test_a_config_that_turns_out_corrupt_is_not_recorded(tmp_path: Path) -> None:
    gatekeeper = keeper(Expected(tmp_path / "e"), update="all")
    gatekeeper.check(a_cell(rates(200.0)), None)
    gatekeeper.check(a_cell(rates(100.0), config="baseline", verify_steps=None), None)
    verdict = Verdict(
        kind="corrupt", level="full", config=CONFIG, prompts=4, identical=0, tokens=99, off=9, largest=3.0, gap_limit=1.0,
        floor_largest=0.0, floor_share=0.0, floor_tokens=99, p_share=1.0,
    )  # fmt: skip
    recording = gatekeeper.record(Results(verdicts={CONFIG: [verdict]}))
    assert [key.config for key in recording.samples] == ["baseline"]
    assert recording.withdrawn == (f"{CONFIG}: not recorded as expected, because it is corrupt",)
    assert not gatekeeper.check(a_cell(rates(200.0)), None).failures, "judged twice it is no missing entry"


def test_headlines_are_recorded_with_rounds_enough_to_be_compared(tmp_path: Path) -> None:
    expected = Expected(tmp_path / "e")
    asked: list[int] = []

    def more(rounds: int) -> tuple[CellFigures, None]:
        asked.append(rounds)
        return a_cell(rates(60.0, rounds, noise=0.05, seed=5)), None

    recording = keeper(expected, update="new")
    measured: list[CellFigures] = [a_cell(rates(200.0, 4))]

    def record(rounds: int) -> tuple[CellFigures, None]:
        measured.append(a_cell(rates(200.0, rounds)))
        return measured[-1], None

    recording.check(measured[0], None, record)
    recording.record(Results(cells={(CONFIG, KEY): measured[-1]}))
    last = expected.last(next(iter(expected.entries)))
    assert last is not None
    assert len(last.values["tok_s"]) == RECORDED
    # A loss of 70 % under noise is found, after as many rounds as that takes.
    outcome = keeper(expected).check(more(4)[0], None, more)
    assert any("tok_s regressed" in text for text in outcome.failures)
    assert max(asked) <= RECORDED
