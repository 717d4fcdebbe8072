"""The coding eval of one session: answers of the baseline and of each config, graded once, compared pairwise."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from pytest_ddtree.client.records import Record
from pytest_ddtree.coding import extract
from pytest_ddtree.coding.checking import ProblemFaultError, grade
from pytest_ddtree.coding.expected import with_expected
from pytest_ddtree.coding.pairs import Pair, Solved, contradiction
from pytest_ddtree.coding.problems import Problem
from pytest_ddtree.coding.sampled import SampledPair
from pytest_ddtree.coding.samples import Sample, write_samples
from pytest_ddtree.coding.sandbox import Limits, Sandbox
from pytest_ddtree.errors import Infrastructure
from pytest_ddtree.exactness.verdict import Verdict
from pytest_ddtree.grid import BASELINE, Config


class Answers(Protocol):
    """What the eval needs of a session; docs are with `answering.CodingAnswers`."""

    def opens_thinking(self, problem: Problem) -> bool: ...

    def can_ask(self, config: Config) -> bool: ...

    def first(self, config: Config, problems: Sequence[Problem]) -> dict[str, Record]: ...

    def again(self, config: Config, problems: Sequence[Problem], number: int) -> dict[str, Record]: ...

    def judge(
        self, config: Config, problems: Sequence[Problem], records: dict[str, Record], *, first: bool
    ) -> dict[str, Verdict] | None: ...


class Solver:
    """Answers and grades problems; each config is asked once for all problems of the selection.

    A problem that cannot be judged itself (`ProblemFaultError`) is an error of its own test and costs no other one.
    """

    def __init__(
        self,
        answers: Answers,
        *,
        sandbox: str,
        samples: int = 0,
        reruns: int = 0,
        alpha: float = 0.05,
        write_to: Path | None = None,
        progress: Callable[[str], None],
    ) -> None:
        """`samples` 0: one greedy answer each; else so many sampled ones. `alpha` is the level over all problems of their tests."""
        self._answers = answers
        self._mode = sandbox
        self._samples = samples
        self._reruns = reruns
        self._alpha = alpha
        self._write_to = write_to
        self._progress = progress
        self._sandbox: Sandbox | None = None
        self._solved: dict[Config, dict[str, tuple[Solved, ...]]] = {}
        self._complete: dict[str, Problem] = {}
        self.faults: dict[str, ProblemFaultError] = {}
        """Problems that cannot be judged: task id -> why."""

    def solve(self, config: Config, problems: Sequence[Problem]) -> dict[str, tuple[Solved, ...]]:
        """The graded answers of a config to all of these problems, made once.

        Raises:
            Infrastructure: no answer, or no sandbox to run one in.
        """
        known = self._solved.setdefault(config, {})
        missing = [
            problem
            for problem in problems
            if problem.task_id not in known and problem.task_id not in self.faults
        ]
        if missing:
            self._open()
            times = f" x {self._samples} samples" if self._samples else ""
            self._progress(f"{config.id}: {len(missing)} coding problems{times}")
            rounds = (
                [self._answers.again(config, missing, number) for number in range(self._samples)]
                if self._samples
                else [self._answers.first(config, missing)]
            )
            graded = [self._grade(missing, records) for records in rounds]
            for problem in missing:
                if problem.task_id not in self.faults:
                    known[problem.task_id] = tuple(answers[problem.task_id] for answers in graded)
            self._write(config, known)
        return known

    def pairs(self, config: Config, problems: Sequence[Problem], *, first: bool = True) -> dict[str, Pair]:
        """Each problem's pair of greedy answers, judged, flips asked again; `first`: the verdict on all answers is on these.

        Raises:
            Infrastructure: no answer, no sandbox, or no judge.
        """
        base = self.solve(BASELINE, problems)
        other = self.solve(config, problems)
        sound = [problem for problem in problems if problem.task_id not in self.faults]
        records = {problem.task_id: other[problem.task_id][0].record for problem in sound}
        verdicts = self._answers.judge(config, sound, records, first=first)
        pairs = {
            problem.task_id: Pair(
                baseline=base[problem.task_id][0],
                other=other[problem.task_id][0],
                verdict=None if verdicts is None else verdicts[problem.task_id],
            )
            for problem in sound
        }
        return self._flips_again(config, sound, pairs)

    def sampled_pairs(self, config: Config, problems: Sequence[Problem]) -> dict[str, SampledPair]:
        """Each problem's samples on both servers. Raises Infrastructure."""
        base = self.solve(BASELINE, problems)
        other = self.solve(config, problems)
        sound = [problem.task_id for problem in problems if problem.task_id not in self.faults]
        alpha = self._alpha / max(1, len(sound))
        return {name: SampledPair(baseline=base[name], other=other[name], alpha=alpha) for name in sound}

    def close(self) -> None:
        """End the sandbox."""
        if self._sandbox is not None:
            self._sandbox.close()
            self._sandbox = None

    def _flips_again(
        self, config: Config, problems: Sequence[Problem], pairs: dict[str, Pair]
    ) -> dict[str, Pair]:
        """Ask flipped problems again, losses and gains alike, on the servers that are up; a corrupt answer counts whenever it comes."""
        flipped = [problem for problem in problems if pairs[problem.task_id].flipped]
        if not flipped or not self._reruns:
            return pairs
        self._progress(
            f"{config.id}: {len(flipped)} of {len(problems)} problems flipped, asked {self._reruns} more times"
        )
        for number in range(1, self._reruns + 1):
            if self._answers.can_ask(BASELINE):
                base = self._grade(flipped, self._answers.again(BASELINE, flipped, number))
                for name, solved in base.items():
                    pair = pairs[name]
                    pairs[name] = replace(pair, baseline_again=(*pair.baseline_again, solved))
            records = self._answers.again(config, flipped, number)
            verdicts = self._answers.judge(config, flipped, records, first=False)
            for name, solved in self._grade(flipped, records).items():
                pair = pairs[name]
                verdict = None if verdicts is None else verdicts[name]
                corrupt = verdict is not None and verdict.kind == "corrupt"
                if corrupt or contradiction(solved.record) is not None:
                    # It is shown in the first answer's place, which counts as one of the others then.
                    again = (*pair.other_again, pair.other)
                    pair = replace(
                        pair, other=solved, other_again=again, verdict=verdict if corrupt else pair.verdict
                    )
                else:
                    pair = replace(pair, other_again=(*pair.other_again, solved))
                pairs[name] = pair
        return pairs

    def _grade(self, problems: Sequence[Problem], records: dict[str, Record]) -> dict[str, Solved]:
        """Extract and run each answer, as many at a time as the sandbox has workers."""
        box = self._open()

        def one(problem: Problem) -> Solved | ProblemFaultError:
            try:
                if problem.task_id not in self._complete:
                    self._complete[problem.task_id] = with_expected(problem, box)
                whole = self._complete[problem.task_id]
                thinking_open = self._answers.opens_thinking(problem)
                return solved(whole, records[problem.task_id], box, thinking_open=thinking_open)
            except ProblemFaultError as error:
                return error

        with ThreadPoolExecutor(box.workers) as pool:
            try:
                found = list(pool.map(one, problems))
            except BaseException:
                # Whatever ends this (Ctrl-C, a sandbox that broke) does not wait for the solutions that still run.
                self.close()
                raise
        graded: dict[str, Solved] = {}
        for problem, answer in zip(problems, found, strict=True):
            if isinstance(answer, ProblemFaultError):
                self.faults[problem.task_id] = answer
            else:
                graded[problem.task_id] = answer
        return graded

    def _write(self, config: Config, known: dict[str, tuple[Solved, ...]]) -> None:
        """The extracted answers so far in EvalPlus' format, one file a config."""
        if self._write_to is None:
            return
        path = self._write_to / f"{config.id}.jsonl"
        try:
            self._write_to.mkdir(parents=True, exist_ok=True)
            write_samples(path, [Sample(name, one.extraction.code) for name in known for one in known[name]])
        except OSError as error:
            raise Infrastructure(f"the samples cannot be written to {path}: {error}") from error

    def _open(self) -> Sandbox:
        if self._sandbox is None:
            box = Sandbox(Limits(), mode="off" if self._mode == "off" else "strict", workers=2)
            box.open()
            self._sandbox = box
            self._progress(f"sandbox: {box.capabilities.describe()}")
        return self._sandbox


def solved(problem: Problem, record: Record, sandbox: Sandbox, *, thinking_open: bool = False) -> Solved:
    """Take the final answer out of a response and run it; `thinking_open`: the prompt itself opened the thinking."""
    reason = record.finish_reason or {}
    extraction = extract(
        record.text,
        entry_point=problem.entry_point or None,
        stdin=problem.stdin,
        finish_reason=str(reason.get("type")) if reason.get("type") else None,
        reasoning=record.reasoning,
        thinking_open=thinking_open and record.reasoning is None,
        given=problem.given,
    )
    outcome = grade(problem, extraction, sandbox)
    return Solved(problem=problem.task_id, record=record, extraction=extraction, outcome=outcome)
