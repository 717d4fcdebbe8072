from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from made import KEY, a_round
from test_runs import VERDICT

from pytest_ddtree.grid import CellKey
from pytest_ddtree.options import OptionError
from pytest_ddtree.results.entries import setting_of
from pytest_ddtree.results.fingerprint import Fingerprint
from pytest_ddtree.results.gate_setup import GateOptions, local_starts, make_gatekeeper, make_policy
from pytest_ddtree.results.store import Store
from pytest_ddtree.results.tolerance import start_spread

CONFIGS = ("baseline", "b8-k4-wnone")
CELLS = (KEY, CellKey(512, 8))
PRINT = Fingerprint(
    {"gpu.name": "H200", "engine.kind": "reference", "engine.sources": "abc", "date": "2026-01-01"}
)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"update_new": True}, "--ddtree-update-new goes with --ddtree-expected"),
        ({"accept_drift": "x", "expected": Path()}, "goes with --ddtree-update-expected"),
        ({"expected": Path("nowhere/e")}, "--ddtree-expected nowhere/e does not exist.*--ddtree-update-new"),
        ({"headline": ("ctx=7",)}, "--ddtree-headline: no cell with ctx=7"),
        ({"gates": ("tok >= 1",)}, "--ddtree-gates: 'tok >= 1'"),
    ],
    ids=["update", "drift", "path", "headline", "gates"],
)
def test_mistakes_are_refused_before_anything_runs(given: dict[str, Any], words: str) -> None:
    with pytest.raises(OptionError, match=words):
        make_policy(GateOptions(**given), CONFIGS, CELLS)


@pytest.mark.parametrize("update", ["update_new", "update_expected"])
def test_figures_are_recorded_where_there_are_none_yet(update: str) -> None:
    options: dict[str, Any] = {"expected": Path("nowhere/e"), update: True}
    assert make_policy(GateOptions(**options), CONFIGS, CELLS).update != "no"


def test_the_policy_counts_its_tests() -> None:
    policy = make_policy(GateOptions(gates=("speedup >= 1.4",)), CONFIGS, CELLS, ["-m", "bench"])
    assert policy.headline == (("b8-k4-wnone", CellKey(512, 8)),)
    assert policy.design.tests == 5
    assert policy.arguments == ("-m", "bench")


def test_what_restarts_do_is_learnt_from_stored_runs_of_the_same_setting(tmp_path: Path) -> None:
    for number, (gpu, rate) in enumerate([("H200", 100.0), ("H200", 101.0), ("B300", 300.0)]):
        with Store(tmp_path / f"2026010{number}T0-1" / "results.jsonl") as store:
            store.append("run", plugin="x", started="now", settings={})
            store.append("fingerprint", scope="session", fingerprint={**PRINT.values, "gpu.name": gpu})
            store.append("round", round=a_round(0, rate).as_json())
    broken = tmp_path / "20260109T0-1" / "results.jsonl"
    broken.parent.mkdir()
    broken.write_text("nonsense\n")
    starts, warnings = local_starts(tmp_path, setting_of(PRINT))
    (key,) = {key for key, _ in starts}
    assert (key.config, key.cell) == ("b8-k4-wnone", KEY.id)
    assert [(one.build, one.run, round(one.values[0])) for one in starts[(key, "tok_s")]] == [
        ("reference abc", "20260100T0-1", 100),
        ("reference abc", "20260101T0-1", 101),
    ]
    assert len(warnings) == 1
    assert str(broken) in warnings[0]
    assert broken.read_text() == "nonsense\n"
    gatekeeper, _ = make_gatekeeper(
        GateOptions(expected=tmp_path / "e"), make_policy(GateOptions(), CONFIGS, CELLS), PRINT, tmp_path
    )
    assert gatekeeper.expected is not None


def test_neither_the_run_that_is_judged_nor_other_arguments_widen_the_tolerance(tmp_path: Path) -> None:
    runs = [(100.0, ""), (101.0, ""), (60.0, "--plant slower:400"), (50.0, "")]
    for number, (rate, arguments) in enumerate(runs):
        with Store(tmp_path / f"2026010{number}T0-1" / "results.jsonl") as store:
            store.append("run", plugin="x", started="now", settings={})
            values = {**PRINT.values, "args.spec": arguments}
            store.append("fingerprint", scope="session", fingerprint=values)
            store.append("round", round=a_round(0, rate).as_json())
    own = tmp_path / "20260103T0-1"
    starts, _ = local_starts(tmp_path, setting_of(PRINT), own=own)
    figures = next(found for (_, metric), found in starts.items() if metric == "tok_s")
    assert [(one.build, round(one.values[0])) for one in figures] == [
        ("reference abc", 100),
        ("reference abc", 101),
        ("reference abc args.spec=--plant slower:400", 60),
    ]
    assert start_spread(figures).deviation == pytest.approx(0.007, abs=1e-3)


def test_the_speed_of_wrong_answers_does_not_widen_the_tolerance(tmp_path: Path) -> None:
    for number, (rate, kind) in enumerate([(100.0, "exact"), (180.0, "corrupt"), (101.0, "exact")]):
        with Store(tmp_path / f"2026010{number}T0-1" / "results.jsonl") as store:
            store.append("run", plugin="x", started="now", settings={})
            store.append("fingerprint", scope="session", fingerprint=PRINT.as_json())
            store.append("verdict", verdict={**VERDICT.as_json(), "kind": kind})
            store.append("round", round=a_round(0, rate).as_json())
    starts, _ = local_starts(tmp_path, setting_of(PRINT))
    assert [round(one.values[0]) for one in next(iter(starts.values()))] == [100, 101]
