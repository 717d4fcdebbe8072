"""A judge is not asked twice about the same tokens after the same prompt, and never taken at its word for others."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_ddtree.client.client import AsyncClient
from pytest_ddtree.client.records import TokenScore
from pytest_ddtree.exactness.levels import collect, teacher_force
from pytest_ddtree.exactness.prompts import Prompt
from pytest_ddtree.exactness.scores import Scores

from .tableserver import TableServer

Ids = tuple[int, ...]
few = st.lists(st.integers(0, 2), min_size=1, max_size=5).map(tuple)


def score(position: int, token_id: int, logprob: float) -> TokenScore:
    return TokenScore(position=position, token_id=token_id, logprob=logprob, top=((9, 0.0),))


def scores(prompt: Ids, emitted: Ids) -> tuple[TokenScore, ...]:
    """The logprob tells prefixes apart."""
    return tuple(
        score(len(prompt) + index, token_id, -float(hash((prompt, emitted[: index + 1])) % 1000))
        for index, token_id in enumerate(emitted)
    )


@given(st.lists(st.tuples(few, few), max_size=8), few, few)
def test_what_is_found_is_what_the_judge_would_say(
    said: list[tuple[Ids, Ids]], prompt: Ids, emitted: Ids
) -> None:
    known = Scores()
    for its_prompt, its_answer in said:
        known.add(its_prompt, scores(its_prompt, its_answer), top=5)
    found = known.find(prompt, emitted, top=5)
    covered = any(p == prompt and a[: len(emitted)] == emitted for p, a in said)
    assert found == (scores(prompt, emitted) if covered else None)
    assert known.find(prompt, emitted, top=6) is None


@pytest.mark.parametrize("positions", [(4, 5), (2, 3), (3, 5)])
def test_scores_of_a_part_of_an_answer_are_not_kept(positions: Ids) -> None:
    with pytest.raises(ValueError, match="do not begin at 3"):
        Scores().add((1, 1, 1), tuple(score(at, 7, 0.0) for at in positions), top=5)


async def test_the_same_answers_are_scored_once(prompts: list[Prompt]) -> None:
    with TableServer() as server:
        async with AsyncClient(server.url) as client:
            known = Scores()
            records = await collect(client, prompts, output=8, concurrency=4)
            first = await teacher_force(client, prompts, records, concurrency=4, known=known)
            shorter = await collect(client, prompts, output=5, concurrency=4)
    # The server is gone: whoever asked it again would fail.
    async with AsyncClient(server.url) as client:
        assert await teacher_force(client, prompts, records, concurrency=4, known=known) == first
        again = await teacher_force(client, prompts, shorter, concurrency=4, known=known)
    assert [answer.scores for answer in again] == [answer.scores[:5] for answer in first]
