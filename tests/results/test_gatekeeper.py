from __future__ import annotations

from pathlib import Path

from made import KEY, a_cell
from made_gates import CONFIG, HEADLINE, PRINT, accepted, keeper, rates, recorded

from pytest_ddtree.grid import CellKey
from pytest_ddtree.results.entries import setting_of
from pytest_ddtree.results.expected import Expected, Sample
from pytest_ddtree.results.expected import Key as EntryKey
from pytest_ddtree.results.fingerprint import Fingerprint
from pytest_ddtree.results.gatekeeper import (
    Gatekeeper,
    GatePolicy,
    headline_tests,
)
from pytest_ddtree.results.gates import Design
from pytest_ddtree.results.metrics import METRICS
from pytest_ddtree.results.model import CellFigures, Results
from pytest_ddtree.results.thresholds import parse_threshold
from pytest_ddtree.results.tolerance import Start


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
    asked.clear()
    longer = a_cell(rates(200.0, 8, noise=0.2, seed=3))
    assert keeper(None, thresholds=thresholds).check(longer, base, with_baseline).warnings
    assert asked == [8, 16, 30], "what the baseline lacks is measured first"
    asked.clear()
    assert keeper(None, thresholds=thresholds).check(longer, base, without).warnings
    assert asked == [8], "asked for once where its server is gone"


def test_rounds_without_a_partner_are_not_measured(tmp_path: Path) -> None:
    expected = Expected(tmp_path / "e")
    recorded(expected, a_cell(rates(200.0, 8, noise=0.25)))
    asked: list[int] = []

    def more(rounds: int) -> tuple[CellFigures, None]:
        asked.append(rounds)
        return a_cell(rates(186.0, rounds, noise=0.25, seed=5)), None

    assert keeper(expected).check(more(4)[0], None, more).warnings
    assert asked == [4, 8]
