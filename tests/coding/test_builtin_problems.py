"""The built-in set: every solution passes its hidden cases, every stub and every draft fails them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from pytest_ddtree.coding import extract
from pytest_ddtree.coding.checking import check
from pytest_ddtree.coding.loaders import load_problems
from pytest_ddtree.coding.problems import Problem
from pytest_ddtree.coding.sandbox import Limits, Sandbox

FOLDER = Path(__file__).parents[2] / "evals" / "coding" / "problems"
PROBLEMS = load_problems([FOLDER])
DRAFT = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    with Sandbox(Limits(cpu_s=60, wall_s=240)) as opened:
        yield opened


@pytest.fixture(scope="module")
def hasty() -> Iterator[Sandbox]:
    """For what is wrong: two of the drafts never end, and none has to be as quick as the right ones."""
    with Sandbox(Limits(cpu_s=0.2)) as opened:
        yield opened


def rendered(problem: Problem) -> str:
    """The whole response that the problem's own parts make, with its thinking."""
    thinking = f"<think>\n{problem.thinking.strip()}\n</think>\n\n"
    return f"{thinking}{problem.answer.strip()}\n\n```python\n{problem.solution.strip()}\n```"


def test_the_set_has_its_sixty_problems() -> None:
    assert len(PROBLEMS) >= 60
    assert len({problem.prompt for problem in PROBLEMS}) == len(PROBLEMS)
    assert {problem.mode for problem in PROBLEMS} == {"function", "class", "stdin"}
    assert min(len(problem.cases) for problem in PROBLEMS) >= 6


@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda problem: problem.task_id)
def test_problem(problem: Problem, sandbox: Sandbox, hasty: Sandbox) -> None:
    assert check(problem, problem.solution, sandbox).status == "pass"
    assert check(problem, problem.stub, hasty).status != "pass"
    drafts = DRAFT.findall(problem.thinking)
    assert drafts, "the thinking holds no draft, so it tempts nobody"
    for draft in drafts:
        assert check(problem, draft, hasty).status != "pass"


@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda problem: problem.task_id)
def test_the_answer_is_found_and_never_the_draft(problem: Problem) -> None:
    response = rendered(problem)
    options = {"entry_point": problem.entry_point or None, "stdin": problem.stdin}
    assert extract(response, **options).code == problem.solution.strip() + "\n"
    for cut in range(0, len(response), 97):
        assert extract(response[:cut], **options, finish_reason="length").status == "truncated"
    assert extract(response.partition("</think>")[0], **options).status == "unclosed_thinking"
    assert not extract(f"{response.partition('</think>')[0]}</think>\nI give up.", **options).ok
