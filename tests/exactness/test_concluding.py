"""A tie among too few tokens, or under too high a floor, is no verdict on a config."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.exactness.sessions import Shape, captured, gap_laws, healthy, prompt_rates
from benchmarks.exactness.small_runs import faulty, session, without_gaps
from pytest_ddtree.client.records import TokenScore
from pytest_ddtree.exactness.concluding import conclude
from pytest_ddtree.exactness.floor import NoiseFloor, assumed_floor, floor_of
from pytest_ddtree.exactness.judged import UNSEEN_GAP, JudgedAnswer
from pytest_ddtree.exactness.power import PositionFault, power
from pytest_ddtree.exactness.rule import Rule, criteria, judge

BROKEN_MASK = (14, 10, 9, 7, 6, 4, 3, 2, 1, 0, 0, 0)
"""56 tokens off in 12 answers of 64: as many as a broken mask had on a GPU at level self."""


def ids_only(off: int, tokens: int, tag: str) -> JudgedAnswer:
    """An answer of which a judge told only its own token at each position; the first `off` are others."""
    scores = tuple(
        TokenScore(
            position=10 + index,
            token_id=1000 + index if index < off else 1,
            logprob=-UNSEEN_GAP if index < off else 0.0,
            top=((1, 0.0),),
        )
        for index in range(tokens)
    )
    return JudgedAnswer(tag=tag, prompt_tokens=10, scores=scores)


def by_itself(off: Sequence[int], tokens: int = 64) -> list[JudgedAnswer]:
    return [ids_only(count, tokens, f"p{index}") for index, count in enumerate(off)]


def test_a_broken_mask_at_level_self_is_no_tie_among_12_prompts() -> None:
    broken = conclude(by_itself(BROKEN_MASK), assumed_floor(), Rule(), config="b8", level="self")
    assert broken.kind in ("corrupt", "unknown")
    # As many as the healthy chain had there.
    sound = conclude(by_itself([2, 2] + [1] * 10), assumed_floor(), Rule(), config="b8", level="self")
    assert sound.kind == "unknown"
    assert "768 tokens of 12 prompts" in sound.reasons[0]
    assert "use more prompts" in sound.reasons[0]


def test_level_self_tells_them_apart_among_48_prompts() -> None:
    sound = conclude(by_itself([1] * 44 + [3] * 4), assumed_floor(), Rule(), config="b8", level="self")
    assert sound.kind == "tie"
    broken = conclude(by_itself(BROKEN_MASK * 4), assumed_floor(), Rule(), config="b8", level="self")
    assert broken.criteria[0] == "share"


def test_even_no_difference_at_all_says_nothing_about_a_config_when_little_was_asked() -> None:
    verdict = conclude(by_itself([0] * 4, 12), assumed_floor(), Rule(), config="b8", level="self")
    assert verdict.kind == "unknown"
    # About these tokens it says all there is to say.
    assert judge(by_itself([0] * 4, 12), assumed_floor(), Rule(), config="b8", level="self").passed


def test_equal_answers_are_exact_however_few() -> None:
    answers = [replace(answer, identical=True) for answer in by_itself([0] * 2, 12)]
    assert conclude(answers, assumed_floor(), Rule(), config="b8", level="full").kind == "exact"


def noisy(share: float, largest: float) -> NoiseFloor:
    """A floor of 24 answers of 64 tokens with so much noise."""
    return replace(
        assumed_floor(),
        largest=largest,
        scale=largest / 4,
        share=share,
        share_off=round(share * 1536),
        share_tokens=1536,
        answers=24,
    )


@pytest.mark.parametrize(
    ("floor", "kind"), [(noisy(0.008, 0.3), "tie"), (noisy(0.03, 1.0), "tie"), (noisy(0.12, 12.0), "unknown")]
)
def test_a_floor_too_high_to_see_a_fault_is_unknown(floor: NoiseFloor, kind: str) -> None:
    answers = []
    for index in range(24):
        scores = [
            TokenScore(position=at, token_id=1, logprob=-0.5, top=((1, -0.5), (2, -1.0))) for at in range(64)
        ]
        scores[5] = replace(scores[5], token_id=2, logprob=-0.6)
        answers.append(JudgedAnswer(tag=f"p{index}", prompt_tokens=0, scores=tuple(scores)))
    verdict = conclude(answers, floor, Rule(), config="b8", level="full")
    assert verdict.kind == kind, verdict.reasons


@given(
    prompts=st.integers(1, 80),
    length=st.integers(1, 300),
    share=st.floats(0.0, 0.3),
    largest=st.floats(0.01, 20.0),
)
def test_power_is_a_probability_and_gaps_only_help(
    prompts: int, length: int, share: float, largest: float
) -> None:
    shape = Shape(prompts=prompts, length=length)
    run = healthy(np.random.default_rng(0), shape, np.ones(prompts), 0.0, lambda _, count: np.zeros(count))
    floor = noisy(share, largest)
    blind, seeing = (power(run, floor, Rule(), gaps=gaps) for gaps in (False, True))
    assert 0.0 <= blind <= seeing <= 1.0
    twice = healthy(
        np.random.default_rng(0),
        Shape(prompts=2 * prompts, length=length),
        np.ones(2 * prompts),
        0.0,
        lambda _, count: np.zeros(count),
    )
    # Thresholds are whole counts, so power saws a little.
    assert power(twice, floor, Rule(), gaps=False) >= blind - 0.1


@pytest.mark.parametrize("level", ["self", "full"])
def test_the_computed_power_is_what_the_rule_has(level: str) -> None:
    """Simulated: how often the rule finds the fault, against the formula."""
    real, generator = captured(), np.random.default_rng(5)
    shape = Shape(prompts=24, length=64) if level == "self" else Shape(prompts=3, length=32)
    found, computed = [], []
    for _ in range(120):
        run, floor = session(shape, 1.0, 0.55, real, level, generator)
        spoilt = faulty(run, PositionFault(), generator)
        spoilt = without_gaps(spoilt) if level == "self" else spoilt
        found.append(bool(criteria(spoilt, floor, Rule())))
        computed.append(power(run, floor, Rule(), gaps=level == "full"))
    assert abs(np.mean(found) - np.mean(computed)) < 0.2
    assert 0.3 < np.mean(found) < 0.99


def test_a_prompt_hit_harder_does_not_excuse_the_others() -> None:
    """A fault's own spread over prompts must not hide it, nor a healthy spread raise an alarm."""
    real, generator = captured(), np.random.default_rng(6)
    law, shape = gap_laws(real)["captured"], Shape(prompts=64, length=64)
    alarms = 0
    for _ in range(60):
        rates = prompt_rates(generator, 64, 1.0)
        base = healthy(generator, shape, rates, real.share, law)
        run = healthy(generator, shape, rates, 1.5 * real.share, law)
        alarms += bool(criteria(run, floor_of({"base": base}), Rule()))
    assert alarms == 0
