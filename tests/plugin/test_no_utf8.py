"""Names and texts that are not UTF-8: what is given is refused before anything starts, what happens is kept as escapes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_ddtree.results.runs import pick_run, read_run

ASCII = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}


def pytest_with(folder: Path, *flags: str | bytes, **env: str) -> tuple[int, str]:
    flags = ("-p", "no:cacheprovider", *flags)
    done = subprocess.run(
        [os.fsencode(sys.executable), b"-m", b"pytest", *map(os.fsencode, flags)],
        cwd=folder,
        env={**{name: text for name, text in os.environ.items() if name != "PYTEST_ADDOPTS"}, **env},
        capture_output=True,
        check=False,
    )
    return done.returncode, (done.stdout + done.stderr).decode(errors="backslashreplace")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "test_mine.py").write_text(
        "def test_mine(ddtree_run):\n    raise RuntimeError('half \\udcff')\n"
    )
    (tmp_path / "pytest.ini").write_text("[pytest]\nasyncio_default_fixture_loop_scope = session\n")
    return tmp_path


@pytest.mark.parametrize(
    ("flag", "env", "said"),
    [
        (
            b"--ddtree-results=x\xff",
            {"PYTHONUTF8": "1"},
            "is no UTF-8, as records and reports are; take another name",
        ),
        ("--ddtree-results=xü", ASCII, "cannot be read by a Python whose locale is ascii; set PYTHONUTF8=1"),
        (b"--ddtree-server-args=--model-path x\xff", {"PYTHONUTF8": "1"}, "is no UTF-8"),
    ],
    ids=["bytes", "locale", "arguments"],
)
def test_it_is_refused_before_anything_starts(
    folder: Path, flag: str | bytes, env: dict[str, str], said: str
) -> None:
    before = sorted(os.listdir(os.fsencode(folder)))
    code, output = pytest_with(folder, flag, PYTHONDONTWRITEBYTECODE="1", **env)
    assert code == pytest.ExitCode.USAGE_ERROR
    assert "ERROR: --ddtree-" in output
    assert said in output
    assert "Traceback" not in output
    assert sorted(os.listdir(os.fsencode(folder))) == before


def test_a_path_of_the_ini_file_that_the_locale_lacks(folder: Path) -> None:
    with (folder / "pytest.ini").open("a", encoding="utf-8") as file:
        file.write("ddtree_results = xü\n")
    code, output = pytest_with(folder, **ASCII)
    assert code == pytest.ExitCode.USAGE_ERROR
    assert "is no path for a Python whose locale is ascii; set PYTHONUTF8=1" in output
    assert "INTERNALERROR" not in output


def test_half_letters_of_a_failure_are_kept_in_every_report(folder: Path) -> None:
    summary = folder / "summary.md"
    code, output = pytest_with(
        folder,
        "-m",
        "",
        "--ddtree-html=r.html",
        PYTHONUTF8="1",
        GITHUB_STEP_SUMMARY=str(summary),
        GITHUB_ACTIONS="true",
    )
    assert code == pytest.ExitCode.TESTS_FAILED
    assert "INTERNALERROR" not in output
    kept = read_run(pick_run(folder / ".ddtree", "last"))
    assert [one.text for one in kept.results.failing.values()] == ["RuntimeError: half \\udcff"]
    assert "half \\udcff" in (folder / "r.html").read_text("utf-8")
    assert "half \\udcff" in summary.read_text("utf-8")
