"""The contract of one config: every procedure under the name of what it guards."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial

from pytest_ddtree.client.client import AsyncClient
from pytest_ddtree.exactness.contract import batches, cache, parameters, reporting, stops
from pytest_ddtree.exactness.contract.evidence import Evidence, Gone, Subject
from pytest_ddtree.exactness.floor import NoiseFloor
from pytest_ddtree.exactness.levels import Prefilled, self_consistency, teacher_force
from pytest_ddtree.exactness.prompts import BaselineAnswers
from pytest_ddtree.exactness.rule import Rule, judge
from pytest_ddtree.exactness.scores import Scores
from pytest_ddtree.exactness.verdict import Verdict

Procedure = Callable[[Subject], Awaitable[Evidence]]


@dataclass(frozen=True, slots=True)
class Clause:
    """One clause of the contract."""

    name: str
    procedure: Procedure
    guards: str
    """What it guards, for people: the first line of the procedure's docstring."""
    short: bool = False
    """Whether it belongs to the part that also runs before speed is measured."""
    speculative: bool = False
    """Whether it says nothing about a server without a drafter."""
    parameter: bool = False
    """Whether its answers show only that a parameter is honoured: one that is ignored fails the clause, and makes no other answer wrong."""


def _clause(
    name: str,
    procedure: Procedure,
    *,
    short: bool = False,
    speculative: bool = False,
    parameter: bool = False,
) -> Clause:
    function = procedure.func if isinstance(procedure, partial) else procedure
    guards = (function.__doc__ or "").strip().splitlines()[0]

    async def guarded(subject: Subject) -> Evidence:
        try:
            return await procedure(subject)
        except Gone as gone:
            return Evidence(problems=(str(gone),))

    return Clause(name, guarded, guards, short, speculative, parameter)


CONTRACT: Mapping[str, Clause] = {
    clause.name: clause
    for clause in (
        _clause("serial", batches.serial, short=True),
        _clause("concurrent-2", partial(batches.concurrent, concurrency=2)),
        _clause("concurrent-8", partial(batches.concurrent, concurrency=8), short=True),
        _clause("concurrent-32", partial(batches.concurrent, concurrency=32)),
        _clause("drafts-are-used", batches.drafts_are_used, short=True, speculative=True),
        _clause("drafts-from-generated", batches.drafts_from_generated, speculative=True),
        _clause("warm-prefix", cache.warm_prefix),
        _clause("second-turn", cache.second_turn, short=True),
        _clause("shared-prefix-cancelled", cache.shared_prefix_cancelled),
        _clause("borders", batches.borders),
        _clause("few-tokens", batches.few_tokens),
        _clause("eos-in-run", stops.eos_in_run, short=True),
        _clause("stop-strings", stops.stop_strings),
        _clause("stop-ids", stops.stop_ids),
        _clause("ignore-eos", stops.ignore_eos),
        _clause("logit-bias", parameters.logit_bias),
        _clause("penalties", parameters.penalties),
        _clause("truncation", parameters.truncation, parameter=True),
        _clause("seeds", parameters.seeds),
        _clause("usage-and-finish", reporting.usage_and_finish),
        _clause("streamed-text", reporting.streamed_text),
        _clause("grammar", parameters.grammar),
        _clause("long-output", batches.long_output),
        _clause("accept-over-time", batches.accept_over_time, speculative=True),
        _clause("no-degenerate-repetition", reporting.no_degenerate_repetition),
        _clause("after-eviction", cache.after_eviction),
        _clause("after-burst", cache.after_burst),
        _clause("idle-and-whole", cache.idle_and_whole),
    )
}
"""Clause name -> clause, in the order in which they run; the last one looks at what the others left behind.
"""


async def judge_evidence(
    evidence: Evidence,
    floor: NoiseFloor,
    rule: Rule,
    *,
    config: str,
    baseline: AsyncClient | None = None,
    itself: AsyncClient | None = None,
    answers: BaselineAnswers | None = None,
    known: Prefilled | None = None,
    scores: Scores | None = None,
    concurrency: int = 8,
) -> Verdict | None:
    """The verdict on the answers of some evidence; None where there is none to judge.

    At level full by a live `baseline`, else at level self by the server `itself`. Raises ValueError when
    neither is given, else what the level raises. `known` holds what prefill said at level self before, `scores` what the
    baseline said.
    """
    if not evidence.answers:
        return None
    if baseline is not None:
        judged = await teacher_force(
            baseline,
            evidence.prompts,
            evidence.records,
            concurrency=concurrency,
            baseline=answers,
            known=scores,
        )
        return judge(judged, floor, rule, config=config, level="full")
    if itself is None:
        raise ValueError("answers are judged by a live baseline or by the server itself; neither was given")
    judged = await self_consistency(
        itself, evidence.prompts, evidence.records, concurrency=concurrency, known=known
    )
    return judge(judged, floor, rule, config=config, level="self")
