"""Records that are JSON and cannot be true: named by file and line wherever a stored run is read, never a traceback."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from made import a_round

from pytest_ddtree.report import compare_cli, show_cli
from pytest_ddtree.results.plausible import check_gate, check_round
from pytest_ddtree.results.runs import read_run
from pytest_ddtree.results.store import Store, StoreCorrupt

GATE: dict[str, Any] = {
    "outcome": "fine", "what": "b8 ctx60-c1", "metric": "tok_s", "text": "fine", "before": 10.0, "now": 11,
    "loss": -0.1, "tolerance": 0.1, "tolerance_why": "same session", "smallest_visible": 0.2,
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *[("wall_s", value) for value in (0, -1, None, "1", True, float("nan"), float("inf"), 10**400)],
        *[("tokens", value) for value in (0, -4, None, 2.5, "9")],
        *[
            (name, "4")
            for name in ("context_tokens", "concurrency", "number", "again", "requests", "temperature")
        ],
        *[("ttft_s", value) for value in ("abc", None, 4, [None], [-1], ["0.1"])],
        ("verify_steps", -1),
        ("verify_steps", "9"),
        ("config", 8),
        *[(name, "4") for name in ("tokens_after_end", "looping", "most_after_end", "coalesced")],
        *[(name, 4) for name in ("cache", "prompts", "sampling", "build")],
        *[(name, "") for name in ("config", "build")],
    ],
)
def test_a_round_that_cannot_be_is_named_by_its_line(tmp_path: Path, name: str, value: Any) -> None:
    path = tmp_path / "results.jsonl"
    with Store(path) as store:
        store.append("run", plugin="x", started="now", settings={})
        store.append("round", round=a_round().as_json())
    broken = {"schema": 2, "kind": "round", "round": {**a_round(1).as_json(), name: value}}
    text = path.read_text() + json.dumps(broken) + "\n"
    path.write_text(text)
    with pytest.raises(StoreCorrupt, match="line 3"):
        read_run(path)
    assert path.read_text() == text


AB: dict[str, Any] = {
    "builds": ["base", "patched"], "passes": 2, "rounds": 4, "alpha": 0.001, "configs": 1, "at_once": False,
    "headline": [{"config": "b8-k4-wnone", "context_tokens": 60, "concurrency": 4, "workload": "code", "temperature": 0.0}],
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *[(name, value) for name in ("rounds", "passes", "configs") for value in (-1, 2.5, "4", None, True)],
        *[(name, 0) for name in ("rounds", "passes")],
        *[("alpha", value) for value in (0, -0.1, 1, 1.5, "0.1", None)],
        *[("headline", value) for value in (4, None, ["b8"], [{}], [{**AB["headline"][0], "config": ""}])],
        ("headline", [{**AB["headline"][0], "concurrency": 0}]),
    ],
)
def test_a_design_of_builds_that_cannot_be_is_named_by_its_line(
    tmp_path: Path, name: str, value: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "results.jsonl"
    with Store(path) as store:
        store.append("ab", **AB)
        for build in ("base", "patched"):
            for number in range(4):
                store.append("round", round=a_round(number, build=build).as_json())
    assert compare_cli.run([str(path)]) == 0
    capsys.readouterr()
    first, *others = path.read_text().splitlines(keepends=True)
    path.write_text("".join([json.dumps({**json.loads(first), name: value}) + "\n", *others]))
    assert compare_cli.run([str(path)]) == 2
    said = capsys.readouterr()
    assert f"{path}, line 1: " in said.err
    assert name in said.err or name == "headline"
    assert said.out == ""


@pytest.mark.parametrize(
    "record",
    [
        {"kind": "start", "reason": None, "seconds": 1.0, "ok": True},
        {"kind": "effective", "effective": {}},
        {"kind": "mismatches", "mismatches": []},
        {"kind": "clause", "clause": "serial"},
        {"kind": "compared"},
        {"kind": "fault", "build": "patched", "text": "another budget"},
        {"kind": "group", "group": "group1"},
    ],
    ids=lambda record: record["kind"],
)
def test_a_record_of_a_config_without_a_name_is_named_by_its_line(
    tmp_path: Path, record: dict[str, Any]
) -> None:
    path = tmp_path / "results.jsonl"
    path.write_text(json.dumps({"schema": 2, "config": "b8-k4-wnone", **record}) + "\n")
    read_run(path)
    path.write_text(json.dumps({"schema": 2, "config": "", **record}) + "\n")
    with pytest.raises(StoreCorrupt, match=r"line 1: .*config is ''"):
        read_run(path)


@pytest.mark.parametrize("config", ["b8--k4", "-", "--w", "chain-", "b-k-w", " "])
def test_a_config_of_any_name_is_shown_and_compared(
    tmp_path: Path, config: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "results.jsonl"
    with Store(path) as store:
        store.append("fingerprint", scope="session", fingerprint={"gpu.name": "none"})
        for of in (config, "chain", "baseline"):
            for number in range(4):
                store.append("round", round=a_round(number, config=of).as_json())
    assert show_cli.run([str(path)]) == 0
    assert compare_cli.run([str(path), str(path)]) == 0
    assert config in capsys.readouterr().out


@pytest.mark.parametrize("name", sorted(GATE))
def test_a_gate_needs_what_reports_show_of_it(name: str) -> None:
    check_gate(GATE)
    with pytest.raises(KeyError):
        check_gate({one: value for one, value in GATE.items() if one != name})
    with pytest.raises(ValueError, match=name):
        check_gate({**GATE, name: None})


@given(st.integers(0, 99), st.floats(0.1, 1e6), st.booleans())
def test_every_round_that_is_written_can_be_read(number: int, rate: float, spoken: bool) -> None:
    check_round(a_round(number, rate, verify_steps=64 if spoken else None).as_json())
