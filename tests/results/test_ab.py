"""A/B of builds on the embedded server: the right one is blamed, both ways round, for corruption and for slowness."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

from pytest_ddtree.ab import Ab
from pytest_ddtree.ab_builds import importable
from pytest_ddtree.ab_cells import ComparedCells
from pytest_ddtree.ab_outcome import AbOutcome
from pytest_ddtree.errors import Infrastructure
from pytest_ddtree.grid import CellKey, Config
from pytest_ddtree.options import make_settings
from pytest_ddtree.report import compare_cli
from pytest_ddtree.report.findings import Report, findings
from pytest_ddtree.results.builds import parse_builds
from pytest_ddtree.results.runs import find_runs, read_run
from pytest_ddtree.results.store import parse

CONFIG = Config("tree", 8, 4)
CELLS = (CellKey(60, 1), CellKey(60, 2))
SMALL = {
    "context": "60",
    "concurrency": "1,2",
    "output": "16",
    "exactness_prompts": "8",
    "exactness_output": "24",
    "rounds": "4",
    "min_rounds": "2",
}


def outcome_of(results: Path, *builds: str, said: list[str] | None = None, **given: str) -> AbOutcome:
    texts = {**SMALL, "results": str(results), **given}
    settings = make_settings({name: (text, "test") for name, text in texts.items()})
    specs = parse_builds(builds, settings.sglang_src)
    progress = (lambda text: None) if said is None else said.append
    ab = Ab(settings, specs, (CONFIG,), CELLS, passes=2, progress=progress)
    try:
        return ab.outcome(CONFIG)
    finally:
        ab.close()


ROOT = Path(__file__).parents[2]
CLAMPED = (
    "budget = args.speculative_ddtree_budget if args.speculative_ddtree_budget is not None else block - 1"
)
"""After this line a budget can be cut."""

FINE = "args:--log-level info"
SLOW = "args:--plant slower:300"
CORRUPT = "args:--plant bonus_repeated"


@pytest.mark.slow
@pytest.mark.parametrize("slow", ["base", "patched"])
def test_the_slow_build_is_named_whichever_it_is(
    tmp_path: Path, slow: str, capsys: pytest.CaptureFixture[str]
) -> None:
    builds = {"base": FINE, "patched": FINE, slow: SLOW}
    outcome = outcome_of(tmp_path, *(f"{name}={where}" for name, where in builds.items()))
    assert [verdict.kind for _, _, verdict in outcome.judged] == ["exact"] * 3
    (comparison,) = outcome.comparisons
    together = comparison.changes[0]
    assert together.key is None
    assert together.outcome == ("worse" if slow == "patched" else "better")
    assert bool(outcome.failures) == (slow == "patched")
    # What was stored says the same as what was seen.
    (path,) = find_runs(tmp_path)
    run = read_run(path)
    assert set(run.builds) == {"base", "patched"}
    assert [(build, against) for build, against, _ in run.judged] == [
        ("base", "base"), ("patched", "patched"), ("patched", "base"),
    ]  # fmt: skip
    starts = {(one.build, one.start_no) for one in run.rounds if one.config == CONFIG.id}
    passes = max(one.number for one in run.rounds) // 2 + 1
    assert len(starts) == 2 * passes, "every stay is a start with a number of its own"
    assert all(
        (path.parent / build / "logs" / f"{CONFIG.id}-{number}.log").exists() for build, number in starts
    )
    assert compare_cli.run([str(path)]) == int(slow == "patched")
    assert f"all cells together: tok_s, ratio {together.ratio[0]:.3f}" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize("at_once", ["false", "true"])
@pytest.mark.parametrize("corrupt", ["base", "patched"])
def test_the_corrupt_build_is_named_whichever_it_is_and_costs_no_benchmark_time(
    tmp_path: Path, corrupt: str, at_once: str
) -> None:
    builds = {"base": FINE, "patched": FINE, corrupt: CORRUPT}
    outcome = outcome_of(tmp_path, *(f"{name}={where}" for name, where in builds.items()), ab_at_once=at_once)
    blamed = {build for build, _, verdict in outcome.judged if not verdict.passed}
    assert blamed == {corrupt}
    assert all(f"build {corrupt} is corrupt" in failure for failure in outcome.failures)
    assert outcome.comparisons == ()
    (path,) = find_runs(tmp_path)
    measured = {one.build for one in read_run(path).rounds if one.config == CONFIG.id}
    # In turns the base has had its first stay before the other build is judged.
    assert measured == ({"base"} if (corrupt, at_once) == ("patched", "false") else set())


@pytest.mark.slow
@pytest.mark.parametrize("at_once", ["false", "true"])
@pytest.mark.parametrize("small", ["base", "patched"])
def test_a_cell_that_a_build_cannot_hold_is_left_out_and_the_others_are_compared(
    tmp_path: Path, small: str, at_once: str, capsys: pytest.CaptureFixture[str]
) -> None:
    builds = {"base": FINE, "patched": FINE, small: f"{SLOW} --max-total-tokens 150"}
    said: list[str] = []
    outcome = outcome_of(
        tmp_path,
        *(f"{name}={where}" for name, where in builds.items()),
        said=said,
        ab_at_once=at_once,
        client_lag="10",
    )
    (comparison,) = outcome.comparisons
    assert {change.key.concurrency for change in comparison.changes if change.key is not None} == {1}
    assert bool(outcome.failures) == (small == "patched")
    (warning,) = [text for text in said if "a cell is not compared" in text]
    assert f"build {small}: " in warning
    assert "ctx60-c2: 2 x (60 + 20) = 160 tokens do not fit" in warning
    # The record says the same, passes included: the cell that was left out has fewer than the others.
    (path,) = find_runs(tmp_path)
    assert warning in read_run(path).results.warnings
    assert compare_cli.run([str(path)]) == int(small == "patched")
    assert warning in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize("at_once", ["false", "true"])
@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("silent_fallback", "it answers without speculation"),
        ("cache_leaks:4", "cache tokens are not free again"),
        ("accept_over_reported", "verify steps and sent"),
    ],
)
def test_a_build_whose_answers_are_right_and_that_is_not_as_it_should_be_is_named(
    tmp_path: Path, fault: str, said: str, at_once: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each of them fails a session of that build alone; the first is faster than the base on a model as small as this."""
    outcome = outcome_of(
        tmp_path, f"base={FINE}", f"patched=args:--plant {fault} --enable-metrics", ab_at_once=at_once, client_lag="10"
    )  # fmt: skip
    assert all(verdict.passed for _, _, verdict in outcome.judged)
    assert {build for build, _ in outcome.faults} == {"patched"}
    assert all(said in text for _, text in outcome.faults)
    assert outcome.failures == tuple(f"{CONFIG.id}: build patched: {text}" for _, text in outcome.faults)
    assert outcome.comparisons == ()
    assert set(outcome.failures) < set(outcome.lines())
    (path,) = find_runs(tmp_path)
    found = [one for one in findings(Report.of(read_run(path)).results) if one.weight == "failure"]
    assert [one.text for one in found] == [
        f"{CONFIG.id} on build patched: {text}" for _, text in outcome.faults
    ]
    assert compare_cli.run([str(path)]) == 1
    printed = capsys.readouterr().out
    assert all(failure in printed for failure in outcome.failures)
    assert "better" not in printed


@pytest.mark.slow
@pytest.mark.parametrize("build", ["base", "patched"])
def test_a_build_that_does_not_run_what_was_asked_is_named(tmp_path: Path, build: str) -> None:
    """A checkout in which a budget is cut on the way from the command line to the engine."""
    checkout = tmp_path / "checkout"
    shutil.copytree(
        ROOT / "pytest_ddtree", checkout / "pytest_ddtree", ignore=shutil.ignore_patterns("__pycache__")
    )
    launch = checkout / "pytest_ddtree" / "reference" / "launch.py"
    text = launch.read_text("utf-8")
    assert text.count(CLAMPED) == 1
    launch.write_text(text.replace(CLAMPED, f"{CLAMPED}\n    budget = min(budget, 2)"), "utf-8")
    builds = {"base": FINE, "patched": FINE, build: str(checkout)}
    outcome = outcome_of(
        tmp_path / "results", *(f"{name}={where}" for name, where in builds.items()), client_lag="10"
    )
    assert {name for name, _ in outcome.faults} == {build}
    assert all(f"this is not {CONFIG.id}: budget: asked 8, " in text for _, text in outcome.faults)
    assert outcome.comparisons == ()


def test_where_no_cell_is_left_there_is_no_comparison() -> None:
    said: list[str] = []
    cells, other = ComparedCells(CELLS, said.append), Config("chain")
    cells.leave_out(CONFIG, CELLS[1], "patched", "ctx60-c2: too large")
    cells.leave_out(CONFIG, CELLS[1], "base", "ctx60-c2: too large")
    assert cells.of(CONFIG) == CELLS[:1]
    cells.leave_out(CONFIG, CELLS[0], "base", "ctx60-c1: too large")
    with pytest.raises(
        Infrastructure, match=r"no cell can be compared: build patched: .*; build base: ctx60-c1"
    ):
        cells.of(CONFIG)
    assert cells.of(other) == CELLS
    assert len(said) == 2
    # Where none was asked for, builds are judged and not measured.
    assert ComparedCells((), said.append).of(CONFIG) == ()


@pytest.mark.slow
@pytest.mark.parametrize("slow", ["base", "patched"])
def test_builds_that_are_up_at_once_take_turns_round_by_round(tmp_path: Path, slow: str) -> None:
    builds = {"base": FINE, "patched": FINE, slow: f"{SLOW} --max-total-tokens 9000"}
    said: list[str] = []
    outcome = outcome_of(
        tmp_path, *(f"{name}={where}" for name, where in builds.items()), said=said, ab_at_once="true"
    )
    assert [verdict.kind for _, _, verdict in outcome.judged] == ["exact"] * 3
    assert outcome.comparisons[0].changes[0].outcome == ("worse" if slow == "patched" else "better")
    # Other sessions on this machine may leave something behind meanwhile; that of this one is none.
    ours = f"its pytest was process {os.getpid()}"
    assert not [text for text in said if "waiting for" in text or ours in text]
    (path,) = find_runs(tmp_path)
    run = read_run(path)
    assert run.ab["at_once"] is True
    assert sum("hold different numbers of tokens" in text for text in run.results.warnings) == 1
    of_config = [one for one in run.rounds if one.config == CONFIG.id]
    order = [(one.number, one.key.concurrency, one.build) for one in of_config]
    ways = (("base", "patched"), ("patched", "base"))
    for number in range(len(order) // 4):
        turn = [
            (number, width, build)
            for place, width in enumerate((1, 2))
            for build in ways[(number + place) % 2]
        ]
        assert order[4 * number : 4 * number + 4] == turn
    passes = len(order) // 8
    assert {(one.build, one.start_no) for one in of_config} == {
        (build, start)
        for build in builds
        for start in {one.start_no for one in of_config if one.build == build}
    }
    assert all(len({one.start_no for one in of_config if one.build == build}) == passes for build in builds)
    assert compare_cli.run([str(path)]) == int(slow == "patched")


@pytest.mark.slow
@pytest.mark.parametrize("at_once", ["false", "true"])
def test_a_build_whose_server_dies_is_named(tmp_path: Path, at_once: str) -> None:
    with pytest.raises(Infrastructure, match=r"^build patched: "):
        outcome_of(
            tmp_path,
            f"base={FINE}",
            "patched=args:--plant crash_after:1",
            client_lag="10",
            ab_at_once=at_once,
        )


@pytest.mark.slow
@pytest.mark.parametrize(
    "when", ["against the answers of base", "build patched: b8-k4-wnone: pass 1"], ids=["judged", "idle"]
)
def test_a_server_that_dies_while_another_build_has_its_turn_is_an_error_and_is_not_replaced(
    tmp_path: Path, when: str
) -> None:
    made: list[Ab] = []
    killed: list[int] = []

    def progress(text: str) -> None:
        if when in text and not killed:
            server = made[0]._builds.run("base").handle(CONFIG)
            assert server is not None
            assert server.pid is not None
            killed.append(server.pid)
            os.kill(server.pid, signal.SIGKILL)
            deadline = time.monotonic() + 30
            while server.running and time.monotonic() < deadline:
                time.sleep(0.02)

    texts = {**SMALL, "results": str(tmp_path), "ab_at_once": "true", "client_lag": "10"}
    settings = make_settings({name: (text, "test") for name, text in texts.items()})
    specs = parse_builds([f"base={FINE}", f"patched={FINE}"], None)
    made.append(Ab(settings, specs, (CONFIG,), CELLS, passes=2, progress=progress))
    try:
        with pytest.raises(Infrastructure, match=r"^build base: ServerDied: .*killed by SIGKILL"):
            made[0].outcome(CONFIG)
    finally:
        made[0].close()
    assert killed
    (path,) = find_runs(tmp_path)
    starts = [record for record in parse(path.read_bytes(), path.name).records if record["kind"] == "start"]
    assert len(starts) == 4, "the baseline and the config of each build, and none after the death"


@pytest.mark.slow
def test_worktrees_of_revisions_are_made_and_removed(tmp_path: Path) -> None:
    source = tmp_path / "src"
    source.mkdir()

    def git(*words: str) -> str:
        command = ["git", "-C", str(source), "-c", "user.name=n", "-c", "user.email=e@e", *words]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout

    git("init", "-q", "-b", "main")
    for text in ("one", "two"):
        (source / "a.py").write_text(f"x = '{text}'\n")
        git("add", ".")
        git("commit", "-qm", text)
    outcome_of(tmp_path / "r", "base=git:HEAD~1", "patched=git:HEAD", sglang_src=str(source))
    (path,) = find_runs(tmp_path / "r")
    prints = read_run(path).fingerprints
    revisions = [prints[f"{build}:session"].get("engine.revision") for build in ("base", "patched")]
    assert revisions == git("rev-parse", "HEAD~1", "HEAD").split()
    assert not (path.parent / "worktrees").exists()
    assert len(git("worktree", "list").splitlines()) == 1


def test_a_checkout_is_imported_from_where_its_package_is(tmp_path: Path) -> None:
    assert importable(tmp_path) == tmp_path
    (tmp_path / "python" / "sglang").mkdir(parents=True)
    assert importable(tmp_path) == tmp_path / "python"
