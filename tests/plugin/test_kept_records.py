"""Baseline answers that outlast a session: reused without a start, refused by name when they are stale, broken or foreign."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from suite import SMALL, run

SELECTION = ("-m", "bench", "-k", "exact_against", *SMALL)
NAME = "test_exact_against_baseline[b8-k4-wnone]"


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("recorded")
    outcome = run(*SELECTION, f"--ddtree-records={folder / 'records'}", results=folder / "run")
    assert outcome.code == 0, outcome.output
    assert "answers of 8 prompts recorded in" in outcome.output
    return folder / "records"


@pytest.mark.slow
def test_the_next_session_needs_no_baseline(recorded: Path, tmp_path: Path) -> None:
    outcome = run(*SELECTION, f"--ddtree-records={recorded}", results=tmp_path)
    assert outcome.code == 0, outcome.output
    assert "exact at level first-divergence" in outcome.output
    assert "8 recorded answers from" in outcome.output
    assert "server starts: 1 in" in outcome.output


@pytest.mark.slow
def test_recorded_answers_find_a_fault(recorded: Path, tmp_path: Path) -> None:
    plant = ("--ddtree-spec-args", "--plant position_off_by_one")
    outcome = run(*SELECTION, *plant, f"--ddtree-records={recorded}", results=tmp_path)
    assert outcome.tests[NAME] == "failure", outcome.output
    assert "corrupt at level first-divergence" in outcome.output
    assert "server starts: 1 in" in outcome.output


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changed", "said"),
    [
        (("--ddtree-server-args", "--page-size 4"), "arguments: recorded none, here --page-size 4"),
        (("--ddtree-seed", "5"), "prompts: recorded"),
        (("--ddtree-records-from-build", "patched"), "here patched"),
    ],
    ids=["other arguments", "other prompts", "another build"],
)
def test_what_is_stale_or_foreign_is_an_error_that_names_the_difference(
    recorded: Path, tmp_path: Path, changed: tuple[str, ...], said: str
) -> None:
    outcome = run(*SELECTION, *changed, f"--ddtree-records={recorded}", results=tmp_path)
    assert outcome.tests[NAME] == "error", outcome.output
    assert said in outcome.messages[NAME]
    assert "server starts" not in outcome.output


@pytest.mark.slow
def test_a_broken_file_is_an_error_with_its_line(recorded: Path, tmp_path: Path) -> None:
    shutil.copytree(recorded, tmp_path / "records")
    (path,) = (tmp_path / "records").iterdir()
    path.write_bytes(path.read_bytes()[:-100])
    outcome = run(*SELECTION, f"--ddtree-records={tmp_path / 'records'}", results=tmp_path)
    assert outcome.tests[NAME] == "error", outcome.output
    assert f"{path}, line 9: half-written" in outcome.messages[NAME]


def test_naming_a_build_without_records_is_refused_at_once(tmp_path: Path) -> None:
    outcome = run("-m", "bench", "--ddtree-records-from-build", "base", results=tmp_path)
    assert outcome.code == 4
    assert "--ddtree-records-from-build needs --ddtree-records DIR" in outcome.output
