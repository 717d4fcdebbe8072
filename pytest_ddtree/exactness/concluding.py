"""The verdict on a whole config: a tie only where a fault would have shown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pytest_ddtree.exactness.floor import NoiseFloor
from pytest_ddtree.exactness.judged import JudgedAnswer
from pytest_ddtree.exactness.power import power
from pytest_ddtree.exactness.rule import Rule, judge
from pytest_ddtree.exactness.tally import tally
from pytest_ddtree.exactness.verdict import Level, Verdict


def conclude(
    answers: Sequence[JudgedAnswer], floor: NoiseFloor, rule: Rule, *, config: str, level: Level
) -> Verdict:
    """The verdict on everything that a config is judged by.

    `judge` says what these tokens show; a tie among too few of them, or under too high a floor, says nothing about
    the config. Single answers and clauses of the contract are for `judge`.
    """
    verdict = judge(answers, floor, rule, config=config, level=level)
    if verdict.kind != "tie":
        return verdict
    # A judge that tells only its own token has a list of one.
    gaps = any(len(score.top) > 1 for answer in answers for score in answer.scores)
    seen = power(tally(answers), floor, rule, gaps=gaps)
    if seen >= rule.least_power:
        return verdict
    prompts = len({answer.prompt for answer in answers if answer.tokens})
    known = "" if gaps else ", of which only is known whether they are the judge's own"
    reason = (
        f"too little to see a fault: {verdict.tokens} tokens of {prompts} prompts{known}, under a floor of "
        f"{verdict.floor_share:.2%} and {verdict.floor_largest:.3g} nats; a wrong mask or position would be seen in "
        f"{seen:.0%} of such runs, {rule.least_power:.0%} are needed: use more prompts, longer answers, or a baseline"
    )
    return replace(verdict, kind="unknown", reasons=(reason,))
