"""What could not be judged is an error, never a failure and never a pass; what a further level can judge is judged there."""

from __future__ import annotations

from pathlib import Path

import pytest
from suite import SMALL, run

from pytest_ddtree.results.runs import find_runs, read_run

NAME = "b8-k4-wnone"

TOO_LITTLE = """
import dataclasses
from pytest_ddtree import verifying

real = verifying.conclude

def conclude(judged, floor, rule, *, config, level):
    verdict = real(judged, floor, rule, config=config, level=level)
    return dataclasses.replace(verdict, kind="unknown", reasons=("too little",)) if level in {levels} else verdict

verifying.conclude = conclude
verifying.Verifier.scorer = lambda self: None
"""
"""A plugin of pytest: no baseline runs beside a config, and at these levels everything is too little to be judged."""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("levels", "came"),
    [(("first-divergence",), "passed"), (("first-divergence", "full"), "error")],
)
def test_level_full_judges_what_was_unknown_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, levels: tuple[str, ...], came: str
) -> None:
    (tmp_path / "too_little.py").write_text(TOO_LITTLE.format(levels=levels))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    selection = ("-p", "too_little", "-m", "exactness", "-k", "test_exact_against or test_full_level")
    outcome = run(*selection, *SMALL, results=tmp_path / "results")
    assert outcome.tests == {
        f"test_exact_against_baseline[{NAME}]": "error",
        f"test_full_level[{NAME}]": came,
    }, outcome.output
    (path,) = find_runs(tmp_path / "results")
    verdict = read_run(path).results.verdict(NAME)
    assert verdict is not None
    assert (verdict.level, verdict.passed) == ("full", came == "passed")
