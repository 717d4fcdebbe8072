"""What the tests of the coding suite ask of a session: pairs, the comparison, the counters, the verdict on all answers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, overload

from pytest_ddtree.answering import CodingAnswers, NotSolved
from pytest_ddtree.coding.counters import Counter, count
from pytest_ddtree.coding.pairs import Pair, compare_pairs
from pytest_ddtree.coding.problems import Problem
from pytest_ddtree.coding.sampled import SampledComparison, SampledPair, compare_samples
from pytest_ddtree.coding.stats import Comparison, Gate
from pytest_ddtree.coding.summary import CodingSummary, summarise, summarise_samples
from pytest_ddtree.errors import Infrastructure
from pytest_ddtree.exactness.verdict import Verdict
from pytest_ddtree.grid import BASELINE, Config
from pytest_ddtree.options import BY_FIELD
from pytest_ddtree.own_problems import OwnProblems
from pytest_ddtree.solving import Solver

if TYPE_CHECKING:
    from pytest_ddtree.run import Run


class Solve:
    """Solves problems on the server of one config: `solve(problem)` is its pair, `solve([one, two])` the pairs of all, in their order."""

    def __init__(self, coding: CodingEval, config: Config) -> None:
        self._coding = coding
        self._config = config

    @overload
    def __call__(self, problems: Problem) -> Pair | SampledPair: ...

    @overload
    def __call__(self, problems: Iterable[Problem]) -> tuple[Pair | SampledPair, ...]: ...

    def __call__(
        self, problems: Problem | Iterable[Problem]
    ) -> Pair | SampledPair | tuple[Pair | SampledPair, ...]:
        """Raises Infrastructure where an answer could not be had, run or judged."""
        if isinstance(problems, Problem):
            return self._coding.solve(self._config, [problems])[0]
        return self._coding.solve(self._config, list(problems))


class CodingEval:
    """The coding eval of a session; everything is made once, for all problems of the selected tests."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self.answers = CodingAnswers(run)
        self._solver: Solver | None = None
        self._pairs: dict[Config, dict[str, Pair] | dict[str, SampledPair] | Infrastructure] = {}
        self.own = OwnProblems(
            run,
            lambda: self._solve,
            by_tokens=lambda: not (self.sampled or self.answers.asks.by_text),
            withdraw=self._withdraw_for,
        )
        self._withdrawn: set[str] = set()
        self._lost_baseline: Infrastructure | None = None

    @property
    def sampled(self) -> bool:
        """Whether answers are sampled: then they are compared by what they solve, not by their tokens."""
        return self._run.settings.coding_temperature > 0

    @property
    def by_text(self) -> bool:
        """Whether the problems that are planned are asked by chat and judged by text."""
        return self._run.plan.solves and self.answers.asks.by_text

    def record_baseline(self, problems: Sequence[Problem]) -> None:
        """Ask the baseline before a speculative server takes its place; what goes wrong is an error of the coding tests alone."""
        try:
            self._solve.solve(BASELINE, problems)
        except Infrastructure as error:
            self._lost_baseline = error

    def solve(self, config: Config, problems: Sequence[Problem]) -> tuple[Pair | SampledPair, ...]:
        """Both sides' answers to each of these problems; all problems of the selection are asked at once, the first time.

        Problems that no selected test of the suite is for, of a user's own test say, belong to no comparison.

        Raises:
            Infrastructure: an answer could not be had, run or judged.
        """
        selected = {problem.task_id for problem in self._run.plan.problems}
        own = [problem for problem in problems if problem.task_id not in selected]
        pairs: dict[str, Pair | SampledPair] = {}
        if len(own) < len(problems):
            pairs |= self._all(config, self._run.plan.problems)
        if own:
            pairs |= self.own.pairs(config, own)
        return tuple(self._judged(pairs, problem) for problem in problems)

    def comparison(self, config: Config, problems: Sequence[Problem]) -> Comparison | SampledComparison:
        """The paired comparison over all problems.

        Raises:
            Infrastructure: it could not be had, or the baseline solves nothing, so that nothing can be lost.
        """
        pairs = self._comparable(config, problems)
        greedy = [pair for pair in pairs if isinstance(pair, Pair)]
        sampled = [pair for pair in pairs if isinstance(pair, SampledPair)]
        base = [pair.baseline for pair in greedy] + [one for pair in sampled for one in pair.baseline]
        if not any(solved.passed for solved in base):
            states = ", ".join(sorted({solved.state for solved in base}))
            raise NotSolved(
                f"the baseline solves none of {len(pairs)} problems ({states}), so no loss could be seen: use easier problems, or more "
                f"tokens ({BY_FIELD['coding_output'].flag}, now {self._run.settings.coding_output})"
            )
        return compare_samples(sampled, self._gate) if sampled else compare_pairs(greedy, self._gate)

    def counters(self, config: Config, problems: Sequence[Problem]) -> tuple[Counter, ...]:
        """Truncation, missing code and time-outs compared pairwise; with several samples, the first of each. Raises Infrastructure."""
        rows = [
            (pair.baseline, pair.other) if isinstance(pair, Pair) else (pair.baseline[0], pair.other[0])
            for pair in self._comparable(config, problems)
        ]
        return count(rows, self._gate)

    def verdict(self, config: Config) -> Verdict | str:
        """The verdict on all greedy answers of a config as one, at level full; or why there is none.

        Raises:
            Infrastructure: nothing was answered, or it could not be judged (`unknown`).
        """
        if self.sampled:
            return "sampled answers have no baseline tokens to be compared with: -m exactness judges sampling"
        if isinstance(self._pairs.get(config), Infrastructure):
            raise NotSolved(str(self._pairs[config]))
        if self.answers.asks.by_text:
            return "judged by text: the server sends no token ids"
        verdict = self.answers.at_level_full(config)
        self._withdraw(config, verdict)
        if verdict.kind == "unknown":
            raise NotSolved(f"{config.id}: {'; '.join(verdict.reasons)}")
        return verdict

    def too_long(self, config: Config, problems: Sequence[Problem]) -> tuple[str, ...]:
        """Answers that do not keep to a limit of a few tokens, in words. Raises Infrastructure."""
        return self.answers.too_long(config, problems)

    def chat_prompt_tokens(self, config: Config, problem: Problem) -> tuple[int, int] | str:
        """Prompt tokens as rendered here and as the chat endpoint counts them, or why that cannot be compared."""
        return self.answers.chat_prompt_tokens(config, problem)

    def close(self) -> None:
        """End the sandbox, close the file of answers. May be called twice."""
        self.answers.close()
        if self._solver is not None:
            self._solver.close()

    @property
    def _gate(self) -> Gate:
        settings = self._run.settings
        return Gate(alpha=settings.coding_alpha, margin=settings.coding_margin)

    @property
    def _solve(self) -> Solver:
        if self._solver is None:
            settings = self._run.settings
            self._solver = Solver(
                self.answers,
                sandbox=settings.sandbox,
                samples=settings.coding_samples if self.sampled else 0,
                reruns=settings.coding_reruns,
                alpha=settings.coding_alpha,
                write_to=settings.write_samples,
                progress=self._run.progress,
            )
        return self._solver

    def _judged(self, pairs: Mapping[str, Pair | SampledPair], problem: Problem) -> Pair | SampledPair:
        if problem.task_id in self._solve.faults:
            raise self._solve.faults[problem.task_id]
        pair = pairs[problem.task_id]
        if pair.judgement == "unjudged":
            raise NotSolved(pair.describe())
        return pair

    def _comparable(self, config: Config, problems: Sequence[Problem]) -> list[Pair | SampledPair]:
        """All pairs. Raises Infrastructure, also where there is none: nothing compared is nothing that passed."""
        pairs: list[Pair | SampledPair] = [*self._all(config, problems).values()]
        if not pairs:
            faults = "\n".join(str(fault) for fault in self._solve.faults.values())
            raise NotSolved(
                f"none of {len(problems)} problems can be judged, so nothing was compared:\n{faults}"
            )
        return pairs

    def _all(self, config: Config, problems: Sequence[Problem]) -> dict[str, Pair] | dict[str, SampledPair]:
        known = self._pairs.get(config)
        if known is None:
            try:
                if self._lost_baseline is not None:
                    raise self._lost_baseline
                known = self._make(config, problems)
            except Infrastructure as error:
                known = error
            self._pairs[config] = known
        if isinstance(known, Infrastructure):
            raise known
        return known

    def _make(self, config: Config, problems: Sequence[Problem]) -> dict[str, Pair] | dict[str, SampledPair]:
        conditions = self.answers.asks.conditions()
        if self.sampled:
            sampled = self._solve.sampled_pairs(config, problems)
            if sampled:
                self._keep(
                    summarise_samples(config.id, list(sampled.values()), self._gate, conditions=conditions)
                )
            return sampled
        pairs = self._solve.pairs(config, problems)
        if pairs:
            self._keep(summarise(config.id, list(pairs.values()), self._gate, conditions=conditions))
            if not self.answers.asks.by_text:
                self._withdraw(config, self.answers.overall(config))
            self._withdraw_for(config, pairs.values())
        return pairs

    def _keep(self, summary: CodingSummary) -> None:
        run = self._run
        run.progress(
            f"{summary.config}: {summary.passed} of {summary.answers} answers pass, baseline {summary.baseline_passed}"
        )
        run.results.coding[summary.config] = summary
        run.store("coding", coding=summary.as_json())

    def _withdraw_for(self, config: Config, pairs: Iterable[Pair]) -> None:
        for pair in pairs:
            if pair.judgement == "corrupt" and pair.verdict is not None:
                self._withdraw(config, pair.verdict)

    def _withdraw(self, config: Config, verdict: Verdict) -> None:
        """A corrupt answer, whatever it solves, makes the config corrupt: its speeds are no results any more."""
        if verdict.kind != "corrupt" or config.id in self._withdrawn:
            return
        self._withdrawn.add(config.id)
        run = self._run
        run.results.verdicts.setdefault(config.id, []).append(verdict)
        run.store("verdict", verdict=verdict.as_json(), clause="coding")
