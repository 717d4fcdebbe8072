"""Problems of a user's own tests where one server fits at a time: how often the servers change places, and what is said of it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from suite import Outcome, run

TREE = "b8-k4-wnone"
FEW = (
    *("--ddtree-budget", "8", "--ddtree-context", "60", "--ddtree-concurrency", "2", "--ddtree-coding-output", "48"),
    *("--ddtree-exactness-prompts", "8", "--ddtree-exactness-output", "32"),
)  # fmt: skip
ONE_AT_A_TIME = """
from pytest_ddtree.servers.settings import ServerSettings

ServerSettings.servers_at_once = property(lambda self: 1)  # A GPU that holds one; the embedded server runs two at once.
"""
MINE = """
import pytest

from pytest_ddtree.coding.problems import Case, Problem


def problem(name, **more):
    cases = {"cases": (Case(args=(2,), expect=4),)} | more
    return Problem(task_id=name, mode="function", entry_point="double", prompt="", question=f"Write double(x), {name}.", **cases)


NAMES = ("one", "two", "three")
MINE = [problem(name) for name in NAMES]
"""
KNOWN = """
@pytest.mark.ddtree_speculative
@pytest.mark.parametrize("mine", MINE, ids=NAMES)
def test_known(ddtree_server, ddtree_solve, mine):
    assert ddtree_solve(mine).problem == mine.task_id


@pytest.mark.ddtree_speculative
@pytest.mark.parametrize("several", [MINE[1:]], ids=["two"])
def test_known_together(ddtree_server, ddtree_solve, several):
    assert [pair.problem for pair in ddtree_solve(several)] == ["two", "three"]
"""
AT_ONCE = """
@pytest.mark.ddtree_speculative
def test_at_once(ddtree_server, ddtree_solve):
    assert [pair.problem for pair in ddtree_solve([*MINE, MINE[0]])] == [*NAMES, "one"]
    assert ddtree_solve(MINE[1]).problem == "two"
    assert ddtree_solve(one for one in ()) == ()
"""
ONE_BY_ONE = """
@pytest.mark.ddtree_speculative
def test_one_by_one(ddtree_server, ddtree_solve):
    assert [ddtree_solve(one).problem for one in MINE] == list(NAMES)
"""
ON_BOTH = ONE_BY_ONE.replace("@pytest.mark.ddtree_speculative", "").replace("one_by_one", "on_both")
UNFAIR = """
BAD = problem("bad", cases=(), inputs=((1,),), solution="def double(x):\\n    raise ValueError\\n")


@pytest.mark.ddtree_speculative
@pytest.mark.parametrize("mine", [MINE[0], BAD], ids=["one", "bad"])
def test_fair(ddtree_server, ddtree_solve, mine):
    assert ddtree_solve(mine).problem == mine.task_id
"""


def solved(tmp_path: Path, source: str, *args: str) -> Outcome:
    own = tmp_path / "own"
    own.mkdir()
    (own / "conftest.py").write_text(ONE_AT_A_TIME)
    (own / "test_own.py").write_text(MINE + source)
    return run(*FEW, str(own / "test_own.py"), *args, results=tmp_path / "results")


def starts(outcome: Outcome) -> list[str]:
    """Config of each start, in order."""
    (told,) = re.findall(r"^server starts: \d+ in [^:]*: (.*)$", outcome.output, re.MULTILINE)
    return [one.split()[0] for one in told.split(", ")]


def test_problems_among_a_tests_parameters_cost_no_start(tmp_path: Path) -> None:
    outcome = solved(tmp_path, KNOWN)
    names = [
        *(f"test_known[{TREE}-{name}]" for name in ("one", "two", "three")),
        f"test_known_together[{TREE}-two]",
    ]
    assert outcome.tests == dict.fromkeys(names, "passed"), outcome.output
    assert starts(outcome) == ["baseline", TREE]
    assert outcome.output.count(f"{TREE}: 3 coding problems") == 1
    assert "took the place" not in outcome.output


@pytest.mark.slow
@pytest.mark.parametrize(
    ("source", "expected", "warned"),
    [
        (AT_ONCE, [TREE, "baseline", TREE], 0),
        (ONE_BY_ONE, [TREE, *["baseline", TREE] * 3], 1),
        (ON_BOTH, ["baseline", TREE], 0),
    ],
    ids=["at once", "one by one", "on both"],
)
def test_problems_that_only_the_test_knows(
    tmp_path: Path, source: str, expected: list[str], warned: int
) -> None:
    outcome = solved(tmp_path, source)
    assert set(outcome.tests.values()) == {"passed"}, outcome.output
    assert starts(outcome) == expected, outcome.output
    assert outcome.output.count("took the place of b8-k4-wnone for the second time") == warned
    assert outcome.output.count("ddtree_solve([...])") == warned


@pytest.mark.slow
def test_an_unfair_problem_of_ones_own_costs_no_other_and_the_suite_nothing(tmp_path: Path) -> None:
    few = ("evals/coding", "--ddtree-problem=banded_fee", "-k", "fair or test_problem or net_loss")
    outcome = solved(tmp_path, UNFAIR, *few)
    assert outcome.tests[f"test_fair[{TREE}-one]"] == "passed", outcome.output
    assert outcome.tests[f"test_fair[{TREE}-bad]"] == "error"
    assert "reference solution fails" in outcome.messages[f"test_fair[{TREE}-bad]"]
    assert starts(outcome) == ["baseline", TREE]
    row = next(line for line in outcome.output.splitlines() if line.startswith(f"{TREE} "))
    assert row.split()[1].endswith("/1"), "one problem of the suite was solved"


@pytest.mark.parametrize(
    ("source", "planned"),
    [
        (KNOWN, "server starts: 2"),
        (AT_ONCE, "server starts: 1, and up to 2 more"),
        (ON_BOTH, "server starts: 2"),
    ],
    ids=["known", "at once", "on both"],
)
def test_the_plan_tells_the_starts(tmp_path: Path, source: str, planned: str) -> None:
    outcome = solved(tmp_path, source, "--ddtree-plan")
    assert planned in outcome.output
    assert ("6 to 18 answers to coding problems" in outcome.output) == (source is KNOWN)
