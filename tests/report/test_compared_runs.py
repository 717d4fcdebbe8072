"""`pytest-ddtree compare BEFORE NOW` where the later run did not measure, or not rightly, what the earlier one did."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from test_reports import a_cell, a_verdict

from pytest_ddtree.exactness.verdict import VerdictKind
from pytest_ddtree.grid import CellKey
from pytest_ddtree.report import compare_cli
from pytest_ddtree.results.model import key_json
from pytest_ddtree.results.store import Store

OLD, NEW = "20260101T0-1", "20260102T0-1"
B8, B16 = "b8-k4-wnone", "b16-k4-wnone"
WIDE = CellKey(60, 8)
GRID = {
    "budget": [8, 16], "topk": [4], "window": [None], "block_size": [None], "where": None,
    "context": [60], "concurrency": [4, 8], "workload": ["code"], "temperature": [0.0], "cache": ["flushed"],
}  # fmt: skip
SPENT = "--ddtree-time-budget 60 s is spent: 2 tests did not run and judged nothing; what was measured before is valid"


def a_run(
    results: Path,
    name: str,
    *configs: str,
    settings: Mapping[str, Any] = GRID,
    cells: Sequence[CellKey] = (CellKey(60, 4), WIDE),
    judged: Mapping[str, VerdictKind] | None = None,
    errors: Sequence[str] = (),
    rate: float = 150.0,
    baseline: bool = True,
) -> Path:
    """A run that measured these configs in these cells."""
    path = results / name / "results.jsonl"
    with Store(path) as store:
        store.append("run", plugin="x", started="2026-01-01", settings=dict(settings))
        store.append("fingerprint", scope="session", fingerprint={"gpu.name": "NVIDIA H200"})
        for config in (*(["baseline"] if baseline else []), *configs):
            for key in cells:
                for one in a_cell(config, 100.0 if config == "baseline" else rate).rounds:
                    store.append("round", round=replace(one, key=key).as_json())
        verdicts: Mapping[str, VerdictKind] = {**dict.fromkeys(configs, "exact"), **(judged or {})}  # type: ignore[dict-item]
        for config, kind in verdicts.items():
            reasons = [] if kind == "exact" else ["a gap of 9 nats"]
            store.append("verdict", verdict=a_verdict(config, kind, *reasons).as_json())
        for test in errors:
            store.append(
                "test", nodeid=f"bench/a.py::{test}", outcome="error", text="the server died\nand more"
            )
    return path


def compared(results: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, str, list[dict[str, Any]]]:
    """Exit code, what is printed, and the gaps of the JSON; both ways to print end alike."""
    arguments = [OLD, NEW, "--results", str(results)]
    code = compare_cli.run(arguments)
    text = capsys.readouterr().out
    assert compare_cli.run([*arguments, "--json"]) == code
    gaps = json.loads(capsys.readouterr().out)["gaps"]
    return code, text, gaps


@pytest.mark.parametrize("measured", [True, False], ids=["measured", "not measured"])
@pytest.mark.parametrize(("kind", "code"), [("corrupt", 1), ("unknown", 2)])
def test_a_config_that_is_no_longer_right_is_no_pass(
    tmp_path: Path, kind: VerdictKind, code: int, measured: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    a_run(tmp_path, OLD, B8, B16)
    a_run(tmp_path, NEW, *([B8, B16] if measured else [B16]), judged={B8: kind})
    found, text, (gap,) = compared(tmp_path, capsys)
    assert found == code
    said = "corrupt in" if kind == "corrupt" else "could not be judged in"
    assert f"{said} {NEW}: {B8} ctx60-c4, ctx60-c8: {kind} at level full: " in text
    assert "a gap of 9 nats" in text
    assert "nothing changed beyond noise\n" not in text
    assert (gap["why"], gap["run"], gap["config"], gap["exit_code"]) == (kind, NEW, B8, code)


def test_a_config_that_was_judged_alone_and_is_corrupt_now_is_worse(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    a_run(tmp_path, OLD, B8, judged={B16: "exact"})
    a_run(tmp_path, NEW, B8, judged={B16: "corrupt"})
    assert compared(tmp_path, capsys)[0] == 1


@pytest.mark.parametrize("kind", ["corrupt", "unknown"])
def test_figures_of_a_config_that_was_not_right_are_no_base(
    tmp_path: Path, kind: VerdictKind, capsys: pytest.CaptureFixture[str]
) -> None:
    a_run(tmp_path, OLD, B16, judged={B8: kind})
    a_run(tmp_path, NEW, B8, B16)
    code, text, _ = compared(tmp_path, capsys)
    assert code == 2
    assert f"{OLD}: {B8}: {kind} at level full" in text
    assert "its figures are no base" in text
    a_run(tmp_path, "20260103T0-1", B16, settings={**GRID, "budget": [16]})
    assert compare_cli.run([OLD, "20260103", "--results", str(tmp_path)]) == 0, "nobody asked for it"


def test_worse_weighs_more_than_missing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a_run(tmp_path, OLD, B8, B16)
    a_run(tmp_path, NEW, B16, rate=80.0)
    code, text, _ = compared(tmp_path, capsys)
    assert code == 1
    assert f"missing in {NEW}: {B8}" in text


@pytest.mark.parametrize("whole", [True, False], ids=["the config", "a cell"])
def test_what_a_run_was_asked_for_and_did_not_measure_is_missing(
    tmp_path: Path, whole: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    a_run(tmp_path, OLD, B8, B16)
    path = a_run(tmp_path, NEW, B16, *([] if whole else [B8]))
    if not whole:
        lines = path.read_text().splitlines(keepends=True)
        path.write_text("".join(one for one in lines if not (B8 in one and '"concurrency":8' in one)))
    code, text, (gap,) = compared(tmp_path, capsys)
    assert code == 2
    assert f"missing in {NEW}: {B8} {'ctx60-c4, ' if whole else ''}ctx60-c8\n" in text
    assert "of what was compared nothing changed beyond noise; not all was\n" in text
    assert gap["cells"] == (["ctx60-c4", "ctx60-c8"] if whole else ["ctx60-c8"])


@pytest.mark.parametrize("measured", [True, False], ids=["measured", "not measured"])
def test_a_config_that_ended_in_an_error_is_no_pass(
    tmp_path: Path, measured: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    a_run(tmp_path, OLD, B8, B16)
    errors = [f"test_contract[{B8}-serial]", f"test_throughput[{B8}-ctx60-c4]"]
    a_run(tmp_path, NEW, *([B8, B16] if measured else [B16]), errors=errors)
    code, text, (gap,) = compared(tmp_path, capsys)
    assert code == 2
    assert f"test_contract[{B8}-serial]: the server died (and 1 more)\n" in text
    assert text.index(f"error in {NEW}: {B8}") < text.index("all cells together")
    assert (gap["why"], len(gap["cells"])) == ("error", 0 if measured else 2)
    assert ("nothing changed beyond noise\n" in text) is False


def test_an_error_is_that_of_the_config_with_the_longest_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    a_run(tmp_path, OLD, B8)
    a_run(tmp_path, NEW, B8, f"{B8}-s16", errors=[f"test_contract[{B8}-s16-serial]"])
    code, text, _ = compared(tmp_path, capsys)
    assert f"error in {NEW}: {B8}-s16: " in text
    assert code == 0, "the earlier run has nothing of that config"
    a_run(tmp_path, "20260103T0-1", B8, errors=["test_of_mine"])
    assert compare_cli.run([OLD, "20260103", "--results", str(tmp_path)]) == 2, "it may be about any config"


def test_what_was_not_asked_for_is_only_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a_run(tmp_path, OLD, B8, B16)
    narrow = {**GRID, "budget": [8], "concurrency": [4]}
    a_run(tmp_path, NEW, B8, settings=narrow, cells=[CellKey(60, 4)])
    code, text, gaps = compared(tmp_path, capsys)
    assert code == 0
    assert f"not asked for in {NEW}: {B16} ctx60-c4, ctx60-c8\n" in text
    assert f"not asked for in {NEW}: {B8} ctx60-c8\n" in text
    assert {gap["exit_code"] for gap in gaps} == {0}
    a_run(tmp_path, "20260103T0-1", B8, settings={**GRID, "where": "budget < 16"})
    assert compare_cli.run([OLD, "20260103", "--results", str(tmp_path)]) == 0
    a_run(tmp_path, "20260104T0-1", B8, settings={})
    assert compare_cli.run([OLD, "20260104", "--results", str(tmp_path)]) == 2, "the record does not tell"


def test_what_a_spent_time_budget_left_out_is_only_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    a_run(tmp_path, OLD, B8, B16)
    path = a_run(tmp_path, NEW, B8)
    assert compared(tmp_path, capsys)[0] == 2
    with Store(path) as store:
        store.append("warning", text=SPENT)
    code, text, _ = compared(tmp_path, capsys)
    assert code == 0
    assert f"left out of {NEW}, whose time was spent: {B16} ctx60-c4, ctx60-c8\n" in text
    assert "not all was" in text


def test_what_the_earlier_run_lacks_is_only_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a_run(tmp_path, OLD, B8)
    a_run(tmp_path, NEW, B8, B16, judged={"chain-wnone": "corrupt"})
    code, text, _ = compared(tmp_path, capsys)
    assert code == 0
    assert f"only in {NEW}: {B16} ctx60-c4, ctx60-c8\n" in text
    assert f"only in {NEW}: chain-wnone: corrupt: corrupt at level full" in text
    assert "nothing changed beyond noise\n" in text


def test_a_cell_that_a_server_cannot_hold_any_more_is_told_unless_it_was_all(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    a_run(tmp_path, OLD, B8)
    path = a_run(tmp_path, NEW, B8, cells=[CellKey(60, 4)])
    with Store(path) as store:
        store.append("infeasible", config=B8, **key_json(WIDE), text="8 requests need 9 GB")
    code, text, _ = compared(tmp_path, capsys)
    assert code == 0
    assert f"cannot be held in {NEW}: {B8} ctx60-c8: 8 requests need 9 GB\n" in text
    assert "not all was" in text
    last = a_run(tmp_path, "20260103T0-1")
    with Store(last) as store:
        for key in (CellKey(60, 4), WIDE):
            store.append("infeasible", config=B8, **key_json(key), text="too large")
    assert compare_cli.run([OLD, "20260103", "--results", str(tmp_path)]) == 2


@pytest.mark.parametrize("changed", ["prompts", "number"])
def test_rounds_of_other_prompts_or_numbers_are_no_comparison(
    tmp_path: Path, changed: str, capsys: pytest.CaptureFixture[str]
) -> None:
    a_run(tmp_path, OLD, B8, B16)
    path = a_run(tmp_path, NEW, B8, B16)
    records = [json.loads(line) for line in path.read_text().splitlines()]
    for one in records:
        if one["kind"] == "round" and one["round"]["config"] == B16:
            one["round"][changed] = "abcd" if changed == "prompts" else one["round"]["number"] + 100
    path.write_text("".join(json.dumps(one) + "\n" for one in records))
    code, text, _ = compared(tmp_path, capsys)
    assert code == 2
    assert f"not comparable in {NEW}: {B16} ctx60-c4, ctx60-c8" in text


@pytest.mark.parametrize("other", [(), (B16,)], ids=["nothing", "another config"])
@pytest.mark.parametrize("baseline", [True, False], ids=["baseline", "no baseline"])
def test_runs_that_share_nothing_speculative_are_no_pass(
    tmp_path: Path, other: tuple[str, ...], baseline: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    a_run(tmp_path, OLD, B8, baseline=baseline)
    a_run(tmp_path, NEW, *other, settings={**GRID, "budget": [16]}, baseline=baseline)
    code, text, _ = compared(tmp_path, capsys)
    assert code == 2
    assert ("nothing speculative was compared" if baseline else "nothing to compare") in text
    assert "nothing changed beyond noise\n" not in text


def test_runs_of_a_baseline_alone_are_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a_run(tmp_path, OLD)
    a_run(tmp_path, NEW)
    code, text, gaps = compared(tmp_path, capsys)
    assert (code, gaps) == (0, [])
    assert "nothing changed beyond noise\n" in text


def coding(config: str, corrupt: int) -> dict[str, Any]:
    return {
        "config": config, "problems": 60, "baseline_passed": 50, "passed": 50, "identical": 40, "lost_to_rounding": 0,
        "corrupt": corrupt, "states": [], "comparison": "50 against 50",
    }  # fmt: skip


@pytest.mark.parametrize(("run", "code"), [(NEW, 1), (OLD, 2)])
def test_corrupt_coding_answers_are_corrupt(
    tmp_path: Path, run: str, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in (OLD, NEW):
        path = a_run(tmp_path, name, B8)
        with Store(path) as store:
            store.append("coding", coding=coding(B8, 3 if name == run else 0))
    found, text, _ = compared(tmp_path, capsys)
    assert found == code
    assert f"corrupt in {run}: {B8}: 3 of 60 coding answers are corrupt; 50 against 50" in text


def test_builds_of_which_nothing_was_measured_are_no_pass(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Store(tmp_path / OLD / "results.jsonl") as store:
        store.append("run", plugin="x", started="2026-01-01", settings={})
        store.append("ab", builds=["base", "patched"], passes=2, rounds=4)
        for build in ("base", "patched"):
            store.append("verdict", build=build, against="base", verdict=a_verdict(B8, "exact").as_json())
    assert compare_cli.run([OLD, "--results", str(tmp_path)]) == 2
    assert "no config was measured on a build" in capsys.readouterr().err
    with Store(tmp_path / OLD / "results.jsonl") as store:
        for build, first in (("base", 0), ("patched", 100)):
            for one in a_cell(B8, 150.0).rounds:
                store.append("round", round=replace(one, number=first + one.number, build=build).as_json())
    assert compare_cli.run([OLD, "--results", str(tmp_path)]) == 2, "no round is on both builds"
    assert "nothing to compare" in capsys.readouterr().out
