"""`pytest-ddtree show`, `compare` and `export` on stored runs."""

from __future__ import annotations

import csv
import io
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from test_reports import a_cell, a_verdict

from pytest_ddtree.exactness.verdict import VerdictKind
from pytest_ddtree.grid import CellKey
from pytest_ddtree.report import compare_cli, export_cli, show_cli
from pytest_ddtree.results.store import Store

PRINT = {"gpu.name": "NVIDIA H200", "gpu.count": 8, "model.weights": "abc"}


def a_run(results: Path, name: str, rate: float, **fingerprint: object) -> Path:
    path = results / name / "results.jsonl"
    with Store(path) as store:
        store.append("run", plugin="x", started="2026-01-01", settings={})
        store.append("fingerprint", scope="session", fingerprint={**PRINT, **fingerprint})
        store.append("start", config="baseline", reason=None, seconds=1.0, ok=True)
        for config, speed in (("baseline", 100.0), ("b8-k4-wnone", rate)):
            for one in a_cell(config, speed).rounds:
                store.append("round", round=one.as_json())
        store.append("verdict", verdict=a_verdict("b8-k4-wnone", "exact").as_json())
    return path


def two_builds(
    results: Path,
    name: str,
    rates: dict[str, float],
    *,
    corrupt: str | None = None,
    unknown: str | None = None,
) -> None:
    with Store(results / name / "results.jsonl") as store:
        store.append("run", plugin="x", started="2026-01-01", settings={})
        for build, rate in rates.items():
            kind: VerdictKind = "corrupt" if build == corrupt else "unknown" if build == unknown else "exact"
            verdict = a_verdict("b8-k4-wnone", kind, *(["a gap of 9 nats"] if kind != "exact" else []))
            store.append("verdict", build=build, against="base", verdict=verdict.as_json())
            for one in a_cell("b8-k4-wnone", rate).rounds:
                store.append("round", round={**one.as_json(), "build": build, "start_no": 1})


def test_runs_are_listed_and_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert show_cli.run(["--results", str(tmp_path)]) == 2
    a_run(tmp_path, "20260101T0-1", 150.0)
    assert show_cli.run(["--results", str(tmp_path)]) == 0
    listed = capsys.readouterr().out
    assert "20260101T0-1" in listed
    assert "NVIDIA H200" in listed
    assert show_cli.run(["last", "--results", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    assert "b8-k4-wnone: code" in shown
    assert "151.5" in shown


def test_what_is_shown_of_a_run_is_shown_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = a_run(tmp_path, "20260101T0-1", 150.0)
    with Store(path) as store:
        for one in a_cell("baseline", 90.0).rounds:
            store.append("round", round=replace(one, again=1).as_json())
    assert show_cli.run(["last", "--results", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    assert shown.count("drift of baseline") == 1
    assert shown.count("server starts: 1 in 1.0 s") == 1


def test_a_run_of_builds_is_listed_with_its_gpu(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    two_builds(tmp_path, "20260101T0-1-ab", {"base": 100.0, "patched": 90.0})
    with Store(tmp_path / "20260101T0-1-ab" / "results.jsonl") as store:
        for build in ("base", "patched"):
            store.append("fingerprint", build=build, scope="session", fingerprint=PRINT)
    assert show_cli.run(["--results", str(tmp_path)]) == 0
    listed = capsys.readouterr().out
    assert listed.count("NVIDIA H200") == 1
    assert "unknown" not in listed


def test_a_torn_run_is_shown_and_left_as_it_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = a_run(tmp_path, "20260101T0-1", 150.0)
    torn = path.read_bytes()[:-5]
    path.write_bytes(torn)
    assert show_cli.run(["last", "--results", str(tmp_path)]) == 0
    assert "unfinished last record" in capsys.readouterr().out
    a_run(tmp_path, "20260102T0-1", 150.0)
    assert export_cli.run(["last-1", "--results", str(tmp_path)]) == 0
    exported = capsys.readouterr()
    assert exported.out.startswith("run,")
    assert "20260101T0-1" in exported.err
    assert "unfinished last record" in exported.err
    for runs in (["last", "last-1"], ["last-1"]):
        compare_cli.run([*runs, "--results", str(tmp_path)])
        assert capsys.readouterr().err.count("20260101T0-1: ") == 1
    assert path.read_bytes() == torn


def test_a_corrupt_run_is_named_with_its_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = a_run(tmp_path, "20260101T0-1", 150.0)
    path.write_bytes(b"nonsense\n" + path.read_bytes())
    for command in (show_cli.run, export_cli.run):
        assert command(["last", "--results", str(tmp_path)]) == 2
        assert "line 1" in capsys.readouterr().err


def test_two_runs_are_compared_and_a_loss_is_the_exit_code(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    a_run(tmp_path, "20260101T0-1", 150.0)
    a_run(tmp_path, "20260102T0-1", 150.0)
    a_run(tmp_path, "20260103T0-1", 110.0)
    arguments = ["--results", str(tmp_path)]
    assert compare_cli.run(["20260101", "20260102", *arguments]) == 0
    assert "nothing changed beyond noise" in capsys.readouterr().out
    assert compare_cli.run(["20260101", "20260103", *arguments]) == 1
    assert "worse: b8-k4-wnone ctx60-c4: tok_s" in capsys.readouterr().out
    assert compare_cli.run(["20260101", "20260103", "--json", *arguments]) == 1
    assert json.loads(capsys.readouterr().out)["before"] == "20260101T0-1"


def test_the_headline_of_two_runs_is_one_that_both_have(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The middle context of the newer run alone may be nothing that the older one measured."""
    a_run(tmp_path, "20260101T0-1", 150.0)
    path = a_run(tmp_path, "20260102T0-1", 150.0)
    with Store(path) as store:
        for context in (512, 1024):
            for one in a_cell("b8-k4-wnone", 150.0).rounds:
                store.append("round", round=replace(one, key=CellKey(context, 4)).as_json())
    compare_cli.run(["last-1", "last", "--results", str(tmp_path), "--json"])
    changes = json.loads(capsys.readouterr().out)["changes"]
    judged = {(one["config"], one["cell"]) for one in changes if one["judged"]}
    assert judged == {("all", None), ("b8-k4-wnone", "ctx60-c4")}


def test_another_gpu_is_never_compared_silently(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a_run(tmp_path, "20260101T0-1", 150.0)
    a_run(tmp_path, "20260102T0-1", 150.0, **{"gpu.name": "NVIDIA B300"})
    with Store(tmp_path / "20260103T0-1" / "results.jsonl") as store:
        store.append("round", round=a_cell("baseline", 100.0).rounds[0].as_json())
    arguments = ["--results", str(tmp_path)]
    assert compare_cli.run(["20260101", "20260102", *arguments]) == 2
    captured = capsys.readouterr()
    assert "gpu.name: was NVIDIA H200, is NVIDIA B300" in captured.err
    assert captured.out == ""
    assert compare_cli.run(["20260101", "20260102", "--anyway", *arguments]) == 0
    assert compare_cli.run(["20260101", "20260103", *arguments]) == 2
    assert "fingerprint" in capsys.readouterr().err


def test_builds_of_one_run_are_compared_and_the_corrupt_one_is_blamed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--results", str(tmp_path)]
    two_builds(tmp_path, "20260101T0-1", {"base": 150.0, "patched": 120.0})
    assert compare_cli.run(["20260101", *arguments]) == 1
    text = capsys.readouterr().out
    assert text.startswith("patched / base")
    assert "worse: b8-k4-wnone ctx60-c4: tok_s" in text
    two_builds(tmp_path, "20260102T0-1", {"base": 150.0, "patched": 150.0}, corrupt="patched")
    assert compare_cli.run(["20260102", *arguments]) == 1
    assert "patched is to blame" in capsys.readouterr().out
    two_builds(tmp_path, "20260103T0-1", {"base": 150.0, "patched": 150.0}, corrupt="base")
    assert compare_cli.run(["20260103", *arguments]) == 1
    assert "base is to blame" in capsys.readouterr().out
    two_builds(tmp_path, "20260105T0-1", {"base": 150.0, "patched": 150.0}, unknown="patched")
    assert compare_cli.run(["20260105", *arguments]) == 2, "not judged is neither worse nor fine"
    text = capsys.readouterr().out
    assert "patched could not be judged" in text
    assert "to blame" not in text
    a_run(tmp_path, "20260104T0-1", 1.0)
    assert compare_cli.run(["20260104", *arguments]) == 2


def test_a_run_of_builds_is_not_compared_with_another_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    two_builds(tmp_path, "20260101T0-1", {"base": 150.0, "patched": 120.0})
    a_run(tmp_path, "20260102T0-1", 150.0)
    for names in (["20260101", "20260102"], ["20260102", "20260101"]):
        for anyway in ([], ["--anyway"]):
            assert compare_cli.run([*names, *anyway, "--results", str(tmp_path)]) == 2
            captured = capsys.readouterr()
            assert captured.out == ""
            assert "20260101T0-1 is a comparison of builds itself" in captured.err
            assert "`pytest-ddtree compare 20260101` shows it" in captured.err


def test_a_run_of_builds_is_shown_with_what_was_found(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    two_builds(tmp_path, "20260101T0-1", {"base": 150.0, "patched": 150.0}, corrupt="patched")
    assert show_cli.run(["last", "--results", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    assert "failure: b8-k4-wnone on build patched against base: " in shown
    assert shown.index("failure: ") < shown.index("build base") < shown.index("\nbuild patched")


def test_a_build_whose_answers_loop_is_named_once_by_each_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    two_builds(tmp_path, "20260101T0-1", {"base": 150.0, "patched": 150.0})
    path = tmp_path / "20260101T0-1" / "results.jsonl"
    records = [json.loads(line) for line in path.read_text().splitlines()]
    for one in records:
        if one["kind"] == "round":
            all_loop = one["round"]["build"] == "patched"
            one["round"]["looping"] = one["round"]["requests"] if all_loop else 0
    path.write_text("".join(json.dumps(one) + "\n" for one in records))
    compare_cli.run(["last", "--results", str(tmp_path)])
    (said,) = [line for line in capsys.readouterr().out.splitlines() if "loop" in line]
    assert said.startswith("answers that end in a loop: base 0 of ")
    assert "which chance does not explain" in said
    with Store(path) as store:
        store.append("warning", text=f"b8-k4-wnone, patched / base: {said}")
    for command in (compare_cli.run, show_cli.run):
        command(["last", "--results", str(tmp_path)])
        assert capsys.readouterr().out.count("answers that end in a loop: base") == 1


def test_exports_can_be_read_by_what_they_are_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a_run(tmp_path, "20260101T0-1", 150.0)
    arguments = ["last", "--results", str(tmp_path), "--format"]
    texts = {}
    for form in export_cli.FORMATS:
        assert export_cli.run([*arguments, form]) == 0
        texts[form] = capsys.readouterr().out
    rows = list(csv.DictReader(io.StringIO(texts["csv"])))
    assert [row["config"] for row in rows] == ["baseline", "b8-k4-wnone"]
    assert float(rows[1]["tok_s"]) == pytest.approx(151.5, abs=0.1)
    assert rows[0]["accept_length"] == ""
    assert rows[1]["verdict"] == "exact"
    rounds = list(csv.DictReader(io.StringIO(texts["rounds-csv"])))
    assert len(rounds) == 8
    assert json.loads(texts["json"])["cells"][0]["config"] == "baseline"
    assert texts["html"].startswith("<!doctype html>")
    assert texts["markdown"].startswith("## ddtree")
    file = tmp_path / "out.csv"
    assert export_cli.run([*arguments, "csv", "-o", str(file)]) == 0
    assert file.read_text() == texts["csv"]
    assert export_cli.run(["nothing", "--results", str(tmp_path)]) == 2


def test_a_spreadsheet_runs_no_formula(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Store(tmp_path / "20260101T0-1" / "results.jsonl") as store:
        store.append("round", round=a_cell("=1+1", 100.0).rounds[0].as_json())
    export_cli.run(["last", "--results", str(tmp_path)])
    assert "'=1+1" in capsys.readouterr().out


def test_the_time_of_a_round_is_a_time(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    at = 1795993090.125
    with Store(tmp_path / "20260101T0-1" / "results.jsonl") as store:
        store.append("round", round=replace(a_cell("b8-k4-wnone", 150.0).rounds[0], at=at).as_json())
    assert export_cli.run(["last", "--format", "rounds-csv", "--results", str(tmp_path)]) == 0
    (row,) = csv.DictReader(io.StringIO(capsys.readouterr().out))
    assert float(row["at"]) == at


COMMAND = (sys.executable, "-c", "from pytest_ddtree.cli import main; raise SystemExit(main())")


def test_a_terminal_of_few_letters_is_written_to(tmp_path: Path) -> None:
    a_run(tmp_path, "20260101T0-1", 150.0)
    environment = {**os.environ, "PYTHONIOENCODING": "ascii", "LC_ALL": "C"}
    done = subprocess.run(
        [*COMMAND, "show", "last", "--results", str(tmp_path)],
        env=environment,
        capture_output=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"151.5 ?" in done.stdout


def test_a_reader_that_leaves_is_no_error(tmp_path: Path) -> None:
    a_run(tmp_path, "20260101T0-1", 150.0)
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "wb") as pipe:
        done = subprocess.run(
            [*COMMAND, "show", "last", "--results", str(tmp_path)],
            stdout=pipe,
            stderr=subprocess.PIPE,
            check=False,
        )
    assert (done.returncode, done.stderr) == (141, b"")


def test_an_export_makes_no_folders(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a_run(tmp_path, "20260101T0-1", 150.0)
    out = tmp_path / "mistyped" / "cells.csv"
    assert export_cli.run(["last", "--results", str(tmp_path), "-o", str(out)]) == 2
    assert str(out) in capsys.readouterr().err
    assert not out.parent.exists()
