"""The solver on a real sandbox: what is asked, how often, and what a problem that cannot be judged costs."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from coding_answers import record, verdict
from sandbox_processes import children, gone

from pytest_ddtree.client.records import Record
from pytest_ddtree.coding.checking import ProblemFaultError
from pytest_ddtree.coding.problems import Case, Problem
from pytest_ddtree.exactness.verdict import Verdict, VerdictKind
from pytest_ddtree.grid import BASELINE, Config, make_grid
from pytest_ddtree.solving import Solver

(TREE,) = make_grid((8,), (4,), (None,), (None,))
RIGHT = "```python\ndef f(x):\n    return x + 1\n```\n"
WRONG = "```python\ndef f(x):\n    return x\n```\n"


def problem(name: str, **more: object) -> Problem:
    fields = {"cases": (Case(args=(1,), expect=2),)} | more
    return Problem(task_id=name, mode="function", entry_point="f", prompt="", question="", **fields)  # type: ignore[arg-type]


class Script:
    """Texts by (config, problem), one a time that is asked; the last one again and again."""

    def __init__(self, texts: dict[tuple[str, str], list[str]], *, baseline_stays: bool = True) -> None:
        self._texts = texts
        self.baseline_stays = baseline_stays
        self.asked: list[tuple[str, tuple[str, ...]]] = []
        self.kinds: dict[str, VerdictKind] = {}

    def opens_thinking(self, problem: Problem) -> bool:
        return False

    def can_ask(self, config: Config) -> bool:
        return self.baseline_stays or config != BASELINE

    def first(self, config: Config, problems: Sequence[Problem]) -> dict[str, Record]:
        return self.again(config, problems, 0)

    def again(self, config: Config, problems: Sequence[Problem], number: int) -> dict[str, Record]:
        self.asked.append((config.id, tuple(problem.task_id for problem in problems)))
        answers = {}
        for one in problems:
            texts = self._texts[config.id, one.task_id]
            text = texts[min(number, len(texts) - 1)]
            answers[one.task_id] = record(ids=tuple(text.encode()), text=text)
        return answers

    def judge(
        self, config: Config, problems: Sequence[Problem], records: dict[str, Record], *, first: bool
    ) -> dict[str, Verdict] | None:
        return {name: verdict("tie" if first else self.kinds.get(name, "tie")) for name in records}


@pytest.fixture(scope="module")
def solvers() -> Iterator[list[Solver]]:
    made: list[Solver] = []
    yield made
    for solver in made:
        solver.close()


def solver_of(script: Script, solvers: list[Solver], **options: object) -> Solver:
    solver = Solver(script, sandbox="strict", progress=lambda text: None, **options)  # type: ignore[arg-type]
    solvers.append(solver)
    return solver


def script(**texts: tuple[list[str], list[str]]) -> Script:
    return Script(
        {("baseline", name): base for name, (base, _) in texts.items()}
        | {(TREE.id, name): other for name, (_, other) in texts.items()}
    )


def test_flips_of_both_kinds_are_asked_again_a_fixed_number_of_times(solvers: list[Solver]) -> None:
    answers = script(
        loss=([RIGHT], [WRONG, RIGHT, RIGHT]),
        gain=([WRONG], [RIGHT, WRONG, WRONG]),
        steady=([RIGHT], [RIGHT]),
        confirmed=([RIGHT], [WRONG]),
    )
    problems = [problem(name) for name in ("loss", "gain", "steady", "confirmed")]
    pairs = solver_of(answers, solvers, reruns=2).pairs(TREE, problems)
    flipped = ("loss", "gain", "confirmed")
    everything = tuple(one.task_id for one in problems)
    first = [("baseline", everything), (TREE.id, everything)]
    assert answers.asked == [*first, *[("baseline", flipped), (TREE.id, flipped)] * 2]
    assert {name: pair.judgement for name, pair in pairs.items()} == {
        "loss": "fine", "gain": "fine", "steady": "fine", "confirmed": "rounding"
    }  # fmt: skip
    assert [len(pairs[name].other_again) for name in pairs] == [2, 2, 0, 2]


def test_a_baseline_that_is_gone_is_not_started_for_reruns(solvers: list[Solver]) -> None:
    answers = script(loss=([RIGHT], [WRONG, RIGHT, RIGHT]))
    answers.baseline_stays = False
    pairs = solver_of(answers, solvers, reruns=2).pairs(TREE, [problem("loss")])
    assert [who for who, _ in answers.asked] == ["baseline", TREE.id, TREE.id, TREE.id]
    assert pairs["loss"].reruns() == "loss: loss, not confirmed: passed 1 of 1 on the baseline, 2 of 3 here"


def test_a_rerun_that_is_corrupt_counts_though_the_majority_passes(solvers: list[Solver]) -> None:
    answers = script(loss=([RIGHT], [WRONG, RIGHT, RIGHT]))
    answers.kinds["loss"] = "corrupt"
    pairs = solver_of(answers, solvers, reruns=2).pairs(TREE, [problem("loss")])
    assert pairs["loss"].judgement == "corrupt"
    # The last of them is shown, and each of the three answers counts once.
    assert pairs["loss"].other.passed
    assert pairs["loss"].reruns() == "loss: loss, not confirmed: passed 3 of 3 on the baseline, 2 of 3 here"


def test_a_problem_that_cannot_be_judged_costs_no_other_one(solvers: list[Solver]) -> None:
    answers = script(good=([RIGHT], [RIGHT]), bad=([RIGHT], [RIGHT]))
    bad = problem("bad", cases=(), inputs=((1,),), solution="def f(x):\n    raise ValueError\n")
    solver = solver_of(answers, solvers)
    pairs = solver.pairs(TREE, [problem("good"), bad])
    assert set(pairs) == {"good"}
    assert isinstance(solver.faults["bad"], ProblemFaultError)
    assert "reference solution fails" in str(solver.faults["bad"])


def test_an_interrupt_ends_the_solutions_that_run(solvers: list[Solver]) -> None:
    slow = "```python\nimport time\ndef f(x):\n    time.sleep(5)\n    return 2\n```\n"
    answers = script(a=([slow], [slow]), b=([slow], [slow]))
    solver = solver_of(answers, solvers)
    seen: list[int] = []

    def interrupt() -> None:
        while not answers.asked:
            time.sleep(0.01)
        while not (running := [child for zygote in children(os.getpid()) for child in children(zygote)]):
            time.sleep(0.01)
        seen.extend(running)
        os.kill(os.getpid(), signal.SIGINT)

    others = set(children(os.getpid()))
    watcher = threading.Thread(target=interrupt)
    watcher.start()
    with pytest.raises(KeyboardInterrupt):
        solver.pairs(TREE, [problem("a"), problem("b")])
    watcher.join()
    assert seen
    assert set(children(os.getpid())) <= others
    assert all(map(gone, seen))


def test_samples_are_asked_as_often_as_said_and_compared_by_problem(solvers: list[Solver]) -> None:
    answers = script(a=([RIGHT, RIGHT, WRONG], [RIGHT, WRONG, WRONG]))
    pairs = solver_of(answers, solvers, samples=3).sampled_pairs(TREE, [problem("a")])
    assert pairs["a"].counts == (2, 1)
    assert len(answers.asked) == 6


def test_written_samples_are_one_line_an_answer(solvers: list[Solver], tmp_path: Path) -> None:
    answers = script(a=([RIGHT], [RIGHT, "I cannot"]), b=([RIGHT], [WRONG]))
    solver_of(answers, solvers, samples=2, write_to=tmp_path / "new").sampled_pairs(
        TREE, [problem("a"), problem("b")]
    )
    lines = [json.loads(line) for line in (tmp_path / "new" / f"{TREE.id}.jsonl").read_text().splitlines()]
    assert [line["task_id"] for line in lines] == ["a", "a", "b", "b"]
    assert lines[0]["solution"] == "def f(x):\n    return x + 1\n"
    assert lines[1]["solution"] == ""
    assert (tmp_path / "new" / "baseline.jsonl").exists()
