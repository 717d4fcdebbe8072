from __future__ import annotations

import math
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from made import KEY, a_cell

from pytest_ddtree.exactness.verdict import Verdict
from pytest_ddtree.grid import CellKey
from pytest_ddtree.report import jsonreport
from pytest_ddtree.results.entries import setting_of
from pytest_ddtree.results.expected import Expected, Sample
from pytest_ddtree.results.expected import Key as EntryKey
from pytest_ddtree.results.fingerprint import Fingerprint
from pytest_ddtree.results.gatekeeper import (
    RECORDED,
    Gatekeeper,
    GatePolicy,
    Recording,
    headline_tests,
)
from pytest_ddtree.results.gates import Design
from pytest_ddtree.results.metrics import METRICS
from pytest_ddtree.results.model import CellFigures, Results
from pytest_ddtree.results.thresholds import parse_threshold
from pytest_ddtree.results.tolerance import Start

CONFIG = "b8-k4-wnone"
PRINT = Fingerprint(
    {
        "date": "2026-03-01T10:00:00",
        "gpu.name": "NVIDIA H200",
        "gpu.count": 8,
        "model.name": "/models/K2",
        "model.weights": "abc",
        "draft.name": "/models/draft",
        "draft.weights": "def",
        "workload.digest": "w",
        "engine.revision": "0123456789abcdef",
    }
)
HEADLINE = ((CONFIG, KEY),)


def rates(mean: float, n: int = 6, *, noise: float = 0.004, seed: int = 0) -> list[float]:
    generator = random.Random(seed)
    return [mean * math.exp(generator.gauss(0, noise)) for _ in range(n)]


def keeper(expected: Expected | None, **policy: Any) -> Gatekeeper:
    fields: dict[str, Any] = {
        "headline": HEADLINE,
        "design": Design(tests=headline_tests(HEADLINE)),
        **policy,
    }
    return Gatekeeper(GatePolicy(**fields), PRINT, expected)


def accepted(path: Path, *means: float) -> Expected:
    """Expected figures, each sample recorded by a session that was told to."""
    expected = Expected(path)
    for mean in means:
        recorded(expected, a_cell(rates(mean)))
    return expected


def recorded(expected: Expected, *cells: CellFigures, **policy: Any) -> Recording:
    """What a session recorded that was told to: each cell is judged, and recorded at the end."""
    gatekeeper = keeper(expected, **{"update": "all", **policy})
    results = Results(cells={(one.config, one.key): one for one in cells})
    for one in cells:
        outcome = gatekeeper.check(one, results.cells.get(("baseline", one.key)))
        assert (outcome.failures, outcome.errors) == ((), ())
    return gatekeeper.record(results)


def test_what_must_agree_is_hardware_models_and_workload() -> None:
    setting = setting_of(PRINT)
    assert setting.gpu == "NVIDIA H200 x8"
    assert (setting.model, setting.draft) == ("K2 abc", "draft def")


def test_a_regressed_headline_fails_and_an_unchanged_one_does_not(tmp_path: Path) -> None:
    expected = accepted(tmp_path / "e", *[200.0] * 6)
    assert not keeper(expected).check(a_cell(rates(200.0, seed=2)), None).failures
    outcome = keeper(expected).check(a_cell(rates(180.0, seed=2)), None)
    assert len(outcome.failures) >= 1
    assert "tok_s regressed" in outcome.failures[0]
    assert "expected 2026-03-01" in outcome.failures[0]


def test_few_starts_allow_ten_percent_and_say_so(tmp_path: Path) -> None:
    expected = accepted(tmp_path / "e", 200.0)
    assert not keeper(expected).check(a_cell(rates(186.0, seed=2)), None).failures
    outcome = keeper(expected).check(a_cell(rates(150.0, seed=2)), None)
    assert "fewer than 5" in outcome.failures[0]


def test_other_cells_are_reported_not_gated(tmp_path: Path) -> None:
    other = CellKey(512, 8)
    expected = Expected(tmp_path / "e")
    recorded(expected, a_cell(rates(200.0), key=other))
    gatekeeper = keeper(expected)
    outcome = gatekeeper.check(a_cell(rates(100.0, seed=2), key=other), None)
    assert not outcome.failures
    assert not outcome.gates
    assert "all 1 cells together" in gatekeeper.together().failures[0]


def test_an_undecided_headline_is_measured_on_and_then_warned_of(tmp_path: Path) -> None:
    expected = Expected(tmp_path / "e")
    recorded(expected, a_cell(rates(200.0, 30, noise=0.25)))
    asked: list[int] = []

    def more(rounds: int) -> tuple[CellFigures, None]:
        asked.append(rounds)
        return a_cell(rates(186.0, rounds, noise=0.25, seed=5)), None

    outcome = keeper(expected).check(more(4)[0], None, more)
    assert asked == [4, 8, 16, 30]
    assert not outcome.failures
    assert any("would have been found" in text for text in outcome.warnings)
    strict = keeper(expected, strict=True).check(a_cell(rates(186.0, 30, noise=0.25, seed=5)), None)
    assert any("undecided" in text for text in strict.failures)


def test_a_missing_entry_fails_with_the_command_and_is_recorded_when_asked(tmp_path: Path) -> None:
    expected = Expected(tmp_path / "e")
    outcome = keeper(expected, arguments=("-m", "bench")).check(a_cell(rates(200.0)), None)
    assert "pytest -m bench --ddtree-update-new" in outcome.failures[0]
    assert len(recorded(expected, a_cell(rates(200.0)), update="new").samples) == 1
    again = keeper(expected, update="new")
    assert again.check(a_cell(rates(100.0)), None).failures, "update-new takes over nothing that exists"
    assert not again.record(Results()).samples


def test_figures_of_another_gpu_are_missing_not_compared(tmp_path: Path) -> None:
    expected = accepted(tmp_path / "e", 200.0)
    elsewhere = Gatekeeper(
        GatePolicy(headline=HEADLINE), Fingerprint({**PRINT.values, "gpu.name": "NVIDIA B300"}), expected
    )
    outcome = elsewhere.check(a_cell(rates(200.0)), None)
    assert "gpu NVIDIA H200 x8 instead of NVIDIA B300 x8" in outcome.failures[0]


def test_figures_of_other_prompts_are_not_compared(tmp_path: Path) -> None:
    expected = accepted(tmp_path / "e", 200.0)
    outcome = keeper(expected).check(a_cell(rates(200.0), prompts="chosen"), None)
    assert "workload w instead of w-chosen" in outcome.failures[0]


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


def test_the_run_that_was_recorded_is_no_second_start(tmp_path: Path) -> None:
    """A sample and the stored run that it came from are one start; and what is judged is none."""
    expected = Expected(tmp_path / "e")
    key = EntryKey(setting_of(PRINT), CONFIG, KEY.id)
    local: list[Start] = []
    for number in range(3):
        values = dict(enumerate(rates(200.0, seed=number)))
        expected.add(key, Sample("2026-01-01", "0123456789ab", {"tok_s": values}, run=f"run{number}"))
        local.append(Start("0123456789ab", values, f"run{number}"))
    policy = GatePolicy(headline=HEADLINE, design=Design(tests=headline_tests(HEADLINE)))
    judge = Gatekeeper(policy, PRINT, expected, local_starts={(key, "tok_s"): local}, run="run2")
    gates = [one for one in judge.check(a_cell(rates(200.0, seed=7)), None).gates if one.metric == "tok_s"]
    assert len(gates) == 2
    assert all("2 stored starts of one build, fewer than 5" in str(gate) for gate in gates)


def test_thresholds_hold_without_expected_figures() -> None:
    policy = {"thresholds": (parse_threshold("tok_s >= 140 @ b8-k4"), parse_threshold("speedup >= 1.4"))}
    base = a_cell([100.0] * 4, config="baseline", verify_steps=None)
    good = keeper(None, **policy).check(a_cell(rates(200.0)), base)
    assert (good.failures, good.errors) == ((), ())
    slow = keeper(None, **policy).check(a_cell(rates(120.0)), base)
    assert len(slow.failures) == 2
    alone = keeper(None, **policy).check(a_cell(rates(200.0)), None)
    assert "speedup was not measured" in alone.errors[0]
    assert not keeper(None, **policy).check(base, base).failures


def test_orphans_are_said(tmp_path: Path) -> None:
    gatekeeper = keeper(accepted(tmp_path / "e", 200.0))
    assert gatekeeper.orphans([CONFIG], [KEY]) == []
    assert (
        "1 entries belong to no cell of this session's grid (b8-k4-wnone ctx60-c4)"
        in gatekeeper.orphans(["b16-k4-wnone"], [KEY])[0]
    )


def test_every_metric_of_a_headline_is_a_test_of_the_design() -> None:
    assert headline_tests([(CONFIG, KEY)]) == len(METRICS)
    assert headline_tests([("baseline", KEY)]) == len(METRICS) - 2


def test_an_expected_metric_that_was_not_measured_is_an_error_and_no_pass(tmp_path: Path) -> None:
    expected = accepted(tmp_path / "e", 200.0)
    outcome = keeper(expected).check(a_cell(rates(200.0, seed=2), verify_steps=None), None)
    assert not outcome.failures
    assert (
        [text for text in outcome.errors if "accept_length is expected" in text] == list(outcome.errors) != []
    )
    base = a_cell(rates(100.0), config="baseline")
    with_speedup = Expected(tmp_path / "s")
    recorded(with_speedup, base, a_cell(rates(200.0)))
    errors = keeper(with_speedup).check(a_cell(rates(200.0, seed=2)), None).errors
    assert len(errors) == 1
    assert "speedup is expected" in errors[0]


def test_an_undecided_threshold_is_measured_on_too() -> None:
    thresholds = (parse_threshold("tok_s >= 195"),)
    asked: list[int] = []

    def more(rounds: int) -> tuple[CellFigures, None]:
        asked.append(rounds)
        return a_cell(rates(200.0, rounds, noise=0.03, seed=3)), None

    outcome = keeper(None, thresholds=thresholds).check(
        a_cell(rates(200.0, 4, noise=0.1, seed=3)), None, more
    )
    assert asked
    assert not outcome.failures
    assert not outcome.warnings
    noisy = keeper(None, thresholds=thresholds).check(a_cell(rates(196.0, 8, noise=0.2, seed=1)), None)
    assert "off the bound would have been told from it" in noisy.warnings[0]


def test_an_undecided_speedup_is_measured_on_where_the_baseline_is_too() -> None:
    thresholds = (parse_threshold("speedup >= 2"),)
    asked: list[int] = []
    base = a_cell(rates(100.0, 4, noise=0.2), config="baseline")

    def with_baseline(rounds: int) -> tuple[CellFigures, CellFigures]:
        asked.append(rounds)
        return a_cell(rates(200.0, rounds, noise=0.2, seed=3)), a_cell(
            rates(100.0, rounds, noise=0.2), config="baseline"
        )

    def without(rounds: int) -> tuple[CellFigures, CellFigures]:
        asked.append(rounds)
        return a_cell(rates(200.0, rounds, noise=0.2, seed=3)), base

    cell = a_cell(rates(200.0, 4, noise=0.2, seed=3))
    assert keeper(None, thresholds=thresholds).check(cell, base, with_baseline).warnings
    assert asked == [8, 16, 30]
    asked.clear()
    assert keeper(None, thresholds=thresholds).check(cell, base, without).warnings
    assert asked == [8], "the baseline's rounds end it"


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


def test_rounds_without_a_partner_are_not_measured(tmp_path: Path) -> None:
    expected = Expected(tmp_path / "e")
    recorded(expected, a_cell(rates(200.0, 8, noise=0.25)))
    asked: list[int] = []

    def more(rounds: int) -> tuple[CellFigures, None]:
        asked.append(rounds)
        return a_cell(rates(186.0, rounds, noise=0.25, seed=5)), None

    assert keeper(expected).check(more(4)[0], None, more).warnings
    assert asked == [4, 8]
