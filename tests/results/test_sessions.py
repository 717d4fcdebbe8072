"""Whole sessions on the embedded server: killed and resumed, recorded and gated."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from session_process import start_session

from pytest_ddtree.report import compare_cli
from pytest_ddtree.report.findings import Report
from pytest_ddtree.report.jsonreport import session_json
from pytest_ddtree.results.answers import FILE
from pytest_ddtree.results.expected_files import read_expected
from pytest_ddtree.results.gatekeeper import RECORDED
from pytest_ddtree.results.runs import find_runs, read_run
from pytest_ddtree.results.store import parse

SMALL = (
    *(
        "-m",
        "bench",
        "-k",
        "test_throughput",
        "--ddtree-budget=8",
        "--ddtree-context=60",
        "--ddtree-output=16",
    ),
    *("--ddtree-exactness-prompts=8", "--ddtree-exactness-output=16", "-p", "no:cacheprovider"),
)


def start(results: Path, *arguments: str) -> subprocess.Popen[str]:
    return start_session(results, *SMALL, *arguments)


def run(results: Path, *arguments: str) -> tuple[int, str]:
    process = start(results, *arguments)
    output, _ = process.communicate(timeout=500)
    return process.returncode, output


def rounds_on_disk(results: Path) -> int:
    return sum(path.read_bytes().count(b'"kind":"round"') for path in find_runs(results))


@pytest.mark.slow
def test_a_slow_build_that_no_time_is_left_to_confirm_is_an_error(tmp_path: Path) -> None:
    process = start_session(
        tmp_path,
        *("-m", "bench", "-k", "test_builds", "-p", "no:cacheprovider"),
        *("--ddtree-budget=8", "--ddtree-context=60", "--ddtree-concurrency=1", "--ddtree-output=16"),
        *("--ddtree-exactness-prompts=8", "--ddtree-exactness-output=16", "--ddtree-rounds=8"),
        *("--ddtree-build=base=args:--log-level info", "--ddtree-build=patched=args:--plant slower:300"),
        # Enough to begin with, and less than the first passes take.
        "--ddtree-time-budget=8s",
        "--ddtree-client-lag=10",
    )
    output, _ = process.communicate(timeout=500)
    assert process.returncode == pytest.ExitCode.TESTS_FAILED, output
    assert "1 error" in output
    assert "build patched looks worse than base, which is not confirmed: " in output
    assert "--ddtree-time-budget leaves 0 s" in output


@pytest.mark.slow
def test_an_interrupted_comparison_of_builds_says_how_to_see_what_was_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    summary = tmp_path / "summary.md"
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))
    process = start_session(
        tmp_path,
        *("-m", "bench", "-k", "test_builds", "-p", "no:cacheprovider"),
        *("--ddtree-budget=8", "--ddtree-context=60", "--ddtree-concurrency=1", "--ddtree-output=16"),
        *("--ddtree-exactness-prompts=8", "--ddtree-exactness-output=16", "--ddtree-rounds=8"),
        *("--ddtree-build=base=args:--log-level info", "--ddtree-build=patched=args:--log-level warning"),
        *("--ddtree-ab-passes=50", "--ddtree-client-lag=10"),
    )

    def measured() -> set[str | None]:
        return {
            one.build
            for path in find_runs(tmp_path)
            for one in read_run(path).rounds
            if one.config != "baseline"
        }

    while process.poll() is None and len(measured()) < 2:
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=120)
    assert process.returncode == pytest.ExitCode.INTERRUPTED, output
    (path,) = find_runs(tmp_path)
    said = f"not finished; `pytest-ddtree compare {path.parent}` compares what was measured"
    assert said in output
    assert said in json.dumps(session_json(Report.of(read_run(path)))["findings"])
    assert said in summary.read_text("utf-8").replace("\\", "")
    assert compare_cli.run([str(path.parent)]) in (1, 2)


WAITS_FOR_THE_OTHERS = """#!/bin/bash
# An interpreter whose servers end only when those of all builds were asked to.
case "$*" in *"-m pytest_ddtree.reference"*) ;; *) exec {python} "$@";; esac
case "$*" in *--check*) exec {python} "$@";; esac
trap 'touch {folder}/told-$$; until [ $(ls {folder} | grep -c told) = 4 ]; do sleep 0.05; done; touch {folder}/ended-$$; kill $server' TERM
{python} "$@" & server=$!
wait $server; wait $server
"""


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 2)])
def test_builds_that_are_up_at_once_are_all_asked_to_stop_before_one_is_waited_for(
    tmp_path: Path, number: int, code: int
) -> None:
    results, folder, python = tmp_path / "results", tmp_path / "stops", tmp_path / "python"
    folder.mkdir()
    python.write_text(WAITS_FOR_THE_OTHERS.format(python=sys.executable, folder=folder))
    python.chmod(0o755)
    process = start_session(
        results,
        *("-m", "bench", "-k", "test_builds", "-p", "no:cacheprovider", "--ddtree-server=reference"),
        *("--ddtree-budget=8", "--ddtree-context=60", "--ddtree-concurrency=1", "--ddtree-output=16"),
        *("--ddtree-exactness-prompts=8", "--ddtree-exactness-output=16", "--ddtree-rounds=8"),
        *(f"--ddtree-build=base={python}", f"--ddtree-build=patched={python}"),
        *("--ddtree-ab-at-once", "--ddtree-ab-passes=50", "--ddtree-client-lag=10"),
    )
    while process.poll() is None and rounds_of_config(results) < 2:
        time.sleep(0.1)
    process.send_signal(number)
    output, _ = process.communicate(timeout=120)
    assert process.returncode == code, output
    assert sum(path.name.startswith("ended") for path in folder.iterdir()) == 4, output


def rounds_of_config(results: Path) -> int:
    """Rounds of what is compared: every server of the first pass is up then."""
    return sum(one.config != "baseline" for path in find_runs(results) for one in read_run(path).rounds)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("plant", "code", "said"),
    [
        ("siblings_visible", 1, "corrupt in {now}: b8-k4-wnone ctx60-c1: corrupt at level "),
        ("crash_after:1", 2, "error in {now}: b8-k4-wnone ctx60-c1: test_throughput[b8-k4-wnone-ctx60-c1]: "),
    ],
)
def test_a_session_that_got_wrong_or_crashed_is_no_pass_beside_the_one_before(
    tmp_path: Path, plant: str, code: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    strong = ("--ddtree-concurrency=1", "--ddtree-exactness-prompts=12", "--ddtree-exactness-output=48")
    status, output = run(tmp_path, *strong)
    assert status == 0, output
    status, output = run(tmp_path, *strong, f"--ddtree-spec-args=--plant {plant}")
    assert status == pytest.ExitCode.TESTS_FAILED, output
    before, now = find_runs(tmp_path)
    assert compare_cli.run([str(before), str(now), "--results", str(tmp_path)]) == code
    printed = capsys.readouterr().out
    assert said.format(now=now.parent.name) in printed
    assert "nothing changed beyond noise\n" not in printed


@pytest.mark.slow
def test_a_session_that_was_killed_goes_on_where_it_was(tmp_path: Path) -> None:
    matrix = ("--ddtree-concurrency=1,2", "--ddtree-rounds=3", "--ddtree-min-rounds=3")
    process = start(tmp_path, *matrix)
    deadline = time.monotonic() + 200
    while rounds_on_disk(tmp_path) < 8:
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=60)
    (path,) = find_runs(tmp_path)
    before = read_run(path)
    assert len(before.rounds) < 12
    code, output = run(tmp_path, *matrix, "--ddtree-resume=last")
    assert code == 0, output
    assert f"{len(before.rounds)} rounds are measured" in output
    assert find_runs(tmp_path) == (path,)
    after = read_run(path)
    assert after.rounds[: len(before.rounds)] == before.rounds
    assert len({(one.config, one.key, one.number) for one in after.rounds}) == len(after.rounds) == 12
    code, output = run(tmp_path, *matrix, "--ddtree-resume=last", "--ddtree-seed=7")
    assert code == pytest.ExitCode.USAGE_ERROR
    assert "workload.seed: was 0, is 7" in output


@pytest.mark.slow
def test_a_cell_that_broke_off_is_gone_on_with_and_no_round_is_stored_twice(tmp_path: Path) -> None:
    """The baseline's cell is asked for again by the config that is compared with it; a reader would keep the first of two rounds."""
    rounds = ("--ddtree-concurrency=1", "--ddtree-rounds=4", "--ddtree-min-rounds=4")
    code, output = run(tmp_path, "-p", "breaking_off", *rounds)
    assert code == pytest.ExitCode.TESTS_FAILED, output
    assert "broken off by a test" in output
    (path,) = find_runs(tmp_path)
    stored = parse(path.read_bytes(), str(path)).records
    names = [
        (record["round"]["config"], record["round"]["number"])
        for record in stored
        if record["kind"] == "round"
    ]
    assert names == [(config, number) for config in ("baseline", "b8-k4-wnone") for number in range(4)]


@pytest.mark.slow
def test_a_planted_slow_down_fails_the_gate_inside_the_test(tmp_path: Path) -> None:
    expected = tmp_path / "expected"
    gated = (
        "--ddtree-concurrency=1",
        "--ddtree-rounds=4",
        "--ddtree-min-rounds=4",
        f"--ddtree-expected={expected}",
    )
    code, output = run(tmp_path, *gated, "--ddtree-update-new")
    assert code == 0, output
    assert {key.config for key in read_expected(expected).entries} == {"baseline", "b8-k4-wnone"}
    # What is expected is what the tables of that session showed, with the rounds that were added for the speedup of the other config.
    (path,) = find_runs(tmp_path)
    shown = {(config, key.id): one for (config, key), one in read_run(path).results.cells.items()}
    for key, (sample,) in read_expected(expected).entries.items():
        figures = shown[key.config, key.cell]
        assert len(sample.values["tok_s"]) == len(figures.rounds) == RECORDED
        assert sample.mean("tok_s") == pytest.approx(figures.tok_s.value, rel=1e-4)
    written = {file: file.read_bytes() for file in expected.iterdir()}
    code, output = run(tmp_path, *gated, "--ddtree-spec-args=--plant slower:400")
    assert code == 1, output
    assert "b8-k4-wnone ctx60-c1: tok_s regressed" in output
    assert {file: file.read_bytes() for file in expected.iterdir()} == written


@pytest.mark.slow
def test_a_corrupt_config_costs_no_benchmark_time(tmp_path: Path) -> None:
    """Every round and the verdicts are in the store: none of the corrupt config is."""
    code, output = run(
        tmp_path,
        "--ddtree-budget=4,8",
        "--ddtree-concurrency=1",
        "--ddtree-spec-args=--plant bonus_repeated",
    )
    assert code == 1, output
    (path,) = find_runs(tmp_path)
    stored = read_run(path)
    assert {config: stored.results.verdict(config).kind for config in ("b4-k4-wnone", "b8-k4-wnone")} == {
        "b4-k4-wnone": "corrupt",
        "b8-k4-wnone": "corrupt",
    }
    assert {one.config for one in stored.rounds} == {"baseline"}
    assert "pilot b4-k4-wnone is corrupt; 1 more to go" in output
    # The run is complete: resumed, it starts nothing.
    code, output = run(
        tmp_path,
        *("--ddtree-budget=4,8", "--ddtree-concurrency=1", "--ddtree-spec-args=--plant bonus_repeated"),
        "--ddtree-resume=last",
    )
    assert code == 1, output
    assert "starting" not in output
    assert find_runs(tmp_path) == (path,)
    assert read_run(path).rounds == stored.rounds


CODING = (
    *(
        "evals",
        "-m",
        "coding",
        "--ddtree-problem-limit=6",
        "--ddtree-coding-concurrency=2",
        "--ddtree-context=60",
    ),
    *(
        "--ddtree-concurrency=2",
        "--ddtree-exactness-prompts=4",
        "--ddtree-exactness-output=16",
        "-p",
        "no:cacheprovider",
    ),
)


def answers_of(results: Path) -> list[tuple[str, str, int]]:
    """Config, question and number of every answer on the disk."""
    return [
        (one["config"], one["asked"], one["number"])
        for path in results.glob(f"*/{FILE}")
        for one in parse(path.read_bytes(), str(path)).records
    ]


@pytest.mark.slow
@pytest.mark.parametrize("enough", [2, 8], ids=["in the baseline's answers", "in the config's"])
def test_a_killed_coding_eval_asks_nothing_twice(tmp_path: Path, enough: int) -> None:
    process = start_session(tmp_path, *CODING)
    deadline = time.monotonic() + 300
    while len(answers_of(tmp_path)) < enough:
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=60)
    before = answers_of(tmp_path)
    assert len(before) < 12
    output, _ = (resumed := start_session(tmp_path, *CODING, "--ddtree-resume=last")).communicate(timeout=500)
    assert resumed.returncode == 0, output
    taken = len([one for one in before if one[0] == "baseline"])
    assert f"baseline: {taken} of 6 answers to coding problems are taken over" in output
    after = answers_of(tmp_path)
    assert after[: len(before)] == before
    assert len(set(after)) == len(after) == 12
    (path,) = find_runs(tmp_path)
    resumed_summary = read_run(path).results.coding["b8-k4-wnone"]
    output, _ = (calm := start_session(tmp_path / "calm", *CODING)).communicate(timeout=500)
    assert calm.returncode == 0, output
    (path,) = find_runs(tmp_path / "calm")
    assert read_run(path).results.coding["b8-k4-wnone"] == resumed_summary
