"""Where the built-in problems are: in the wheel beside the package, in a checkout beside the suites."""

from __future__ import annotations

from pathlib import Path

from pytest_ddtree.coding.problems import Flaw, ProblemFilesError

_PACKAGE = Path(__file__).parents[1]


def builtin_problems() -> Path:
    """The folder of the built-in problems. Raises ProblemFilesError where there is none (a damaged installation)."""
    places = (_PACKAGE / "suites" / "coding" / "problems", _PACKAGE.parent / "evals" / "coding" / "problems")
    for place in places:
        if place.is_dir():
            return place
    raise ProblemFilesError(
        [Flaw(places[0], None, "the built-in problems are not installed; reinstall pytest-ddtree")]
    )
