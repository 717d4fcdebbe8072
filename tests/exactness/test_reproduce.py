"""A corruption is seen again alone, and its prompt and output are cut while it stays."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_ddtree.client.client import AsyncClient
from pytest_ddtree.client.records import Request, Sampling
from pytest_ddtree.exactness.prompts import Prompt
from pytest_ddtree.exactness.reproduce import gap_above, reproduce, same_token

from .tableserver import TableServer

MARK = (11, 12, 13)
PROMPT = Prompt("long", (*range(1, 30), *MARK, 40, 41, 42))


def spoil(ids: Sequence[int], at: int, right: int) -> int | None:
    """Answers to prompts that hold the mark go wrong at their fifth token."""
    holds = any(tuple(ids[i : i + 3]) == MARK for i in range(8, len(ids)))
    return (right + 1) % 48 if holds and at == 4 else None


async def test_prompt_and_output_are_cut_while_the_answer_stays_corrupt() -> None:
    with TableServer() as base, TableServer(speculative=True, spoil=spoil) as tree:
        async with AsyncClient(base.url) as judge, AsyncClient(tree.url) as client:
            sampling = Sampling(max_new_tokens=40, ignore_eos=True)
            shorter, tried = await reproduce(client, PROMPT, sampling, 4, gap_above(judge, 1e-3))
    assert tried.alone is True
    assert tried.output == 5
    assert len(shorter.ids) < len(PROMPT.ids)
    assert shorter.ids == PROMPT.ids[-len(shorter.ids) :]
    assert spoil(shorter.ids, 4, 0) is not None
    assert spoil(shorter.ids[1:], 4, 0) is None
    assert len(tree.seen) <= 16


async def test_an_answer_that_is_right_alone_is_said_to_be() -> None:
    with TableServer() as base, TableServer(speculative=True) as tree:
        async with AsyncClient(base.url) as judge, AsyncClient(tree.url) as client:
            sampling = Sampling(max_new_tokens=40)
            shorter, tried = await reproduce(client, PROMPT, sampling, 4, gap_above(judge, 1e-3))
    assert shorter == PROMPT
    assert tried.alone is False
    assert tried.output is None
    assert len(tree.seen) == 1


async def test_without_a_judge_no_shorter_prompt_is_asked() -> None:
    """Nothing can be said of one: each would be a request for nothing."""
    with TableServer(speculative=True, spoil=spoil) as tree:
        async with AsyncClient(tree.url) as client:
            sampling = Sampling(max_new_tokens=40, ignore_eos=True)
            answer = await client.generate(Request(sampling=sampling, input_ids=PROMPT.ids))
            again = same_token(PROMPT, 4, answer.output_ids[4])
            same, tried = await reproduce(client, PROMPT, sampling, 4, again, shorten=False)
    assert same == PROMPT
    assert (tried.alone, tried.output) == (True, 5)
    assert len(tree.seen) == 3
