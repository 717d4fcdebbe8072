"""Real gaps of a GPU server, and prompts for the table server."""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest

from pytest_ddtree.client.records import TokenScore
from pytest_ddtree.exactness.floor import NoiseFloor, make_floor
from pytest_ddtree.exactness.judged import JudgedAnswer
from pytest_ddtree.exactness.prompts import Prompt

DATA = Path(__file__).parent.parent / "data" / "teacher-forced-gaps.json.gz"


def answer(gaps: Sequence[float], tag: str = "p", identical: bool | None = False) -> JudgedAnswer:
    """A judged answer with these gaps after a prompt of 10 tokens; the argmax is token 1, any other is 2."""
    scores = tuple(
        TokenScore(
            position=10 + index,
            token_id=1000 + index if gap > 0 else 1,
            logprob=-0.5 - gap,
            top=((1, -0.5), (2, -0.75), (3, -1.5)),
        )
        for index, gap in enumerate(gaps)
    )
    return JudgedAnswer(tag=tag, prompt_tokens=10, scores=scores, identical=identical)


@pytest.fixture(scope="session")
def captured() -> Mapping[str, list[JudgedAnswer]]:
    """Run -> 64 judged answers of 160 tokens, as measured on a real server."""
    with gzip.open(DATA, "rt") as file:
        runs = json.load(file)["runs"]
    return {
        run: [answer(gaps, tag=f"p{i}") for i, gaps in enumerate(prompts)] for run, prompts in runs.items()
    }


@pytest.fixture(scope="session")
def floor(captured: Mapping[str, list[JudgedAnswer]]) -> NoiseFloor:
    """The floor of the captured baseline at all its concurrencies."""
    return make_floor({run: captured[run] for run in ("base@1", "base@8", "base@32")})


@pytest.fixture(scope="session")
def prompts() -> list[Prompt]:
    """Twelve prompts for the table server."""
    generator = np.random.default_rng(7)
    return [
        Prompt(f"t{index}", tuple(int(token) for token in generator.integers(1, 48, 12 + index)))
        for index in range(12)
    ]
