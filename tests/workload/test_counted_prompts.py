"""Text prompts whose tokens only the server counts: exact, found by a search that ends, and others in the place of what cannot be made."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_ddtree.model_files import REFERENCE_WEIGHTS
from pytest_ddtree.workload import counted
from pytest_ddtree.workload.counted import CannotCount, Count, DoesNotFit, fit_prompt, fit_prompts
from pytest_ddtree.workload.prompts import PromptMaker
from pytest_ddtree.workload.texts import WORKLOADS, Workload, shipped, split_text

SHIPPED = PromptMaker(REFERENCE_WEIGHTS / "target")


def counter(count: Callable[[str], int], asked: list[str] | None = None) -> Count:
    async def answer(text: str) -> int:
        if asked is not None:
            asked.append(text)
        await asyncio.sleep(0)  # as one that waits for a server
        return count(text)

    return answer


def as_chat(text: str) -> int:
    """As the embedded server counts a message: with its template."""
    return len(SHIPPED.chat_ids(text))


@settings(deadline=None, max_examples=150)
@given(
    st.sampled_from(WORKLOADS),
    st.one_of(st.sampled_from([128, 256, 257, 300, 512, 1024, 4096]), st.integers(100, 3000)),
    st.integers(0, 10_000),
    st.integers(0, 3),
)
def test_the_shipped_tokenizer_counts_what_was_asked_for(
    workload: str, tokens: int, index: int, seed: int
) -> None:
    asked: list[str] = []
    prompt = asyncio.run(fit_prompt(counter(as_chat, asked), shipped(workload), tokens, index, seed=seed))
    assert as_chat(prompt.text) == tokens == prompt.tokens
    # Half of what is allowed: no prompt is near the limit.
    assert len(asked) <= counted._PROBES // 2


@settings(deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 400), st.integers(1, 60))
def test_the_search_ends_with_the_number_or_says_that_there_is_none(
    seed: int, tokens: int, jump: int
) -> None:
    """Counts of no tokenizer: every text has any number of tokens up to `jump` more than its words."""
    asked: list[str] = []

    def count(text: str) -> int:
        return 1 + len(text.split(" ")) + random.Random(f"{seed}/{text}").randrange(jump)

    prompt = None
    with suppress(DoesNotFit):
        prompt = asyncio.run(fit_prompt(counter(count, asked), shipped("chat"), tokens, 0))
    if prompt is None:
        assert tokens not in map(count, asked)
    else:
        assert count(prompt.text) == tokens == prompt.tokens
    assert len(asked) <= counted._PROBES


@pytest.mark.parametrize("last", range(1, counted._PROBES + 1))
def test_the_count_after_the_last_change_counts_too(last: int) -> None:
    asked: list[str] = []
    wrong = iter([10, *([90, 110] * counted._PROBES)])

    def count(text: str) -> int:
        return next(wrong) if len(asked) < last else 100

    if last == 1:
        asked.append("")
    prompt = asyncio.run(fit_prompt(counter(count, asked), shipped("code"), 100, 0))
    assert prompt.tokens == 100


OWN = Workload("own", (split_text("text", "a " * 400),), ("short?", "much too long " * 60))


def test_a_prompt_that_cannot_be_made_gives_its_place_to_the_next() -> None:
    for at_once in (1, 3, 16):
        prompts, left_out = asyncio.run(
            fit_prompts(counter(lambda text: len(text.split())), OWN, 100, 5, at_once=at_once)
        )
        assert [prompt.tag for prompt in prompts] == [f"own-100-{index}" for index in (0, 2, 4, 6, 8)]
        assert {prompt.tokens for prompt in prompts} == {100}
        assert len(left_out) == 4
        assert "too short: template and question need" in str(left_out[0])


@pytest.mark.parametrize("at_once", [1, 4])
def test_several_in_a_row_that_cannot_be_made_are_the_end(at_once: int) -> None:
    asked: list[str] = []
    with pytest.raises(CannotCount, match=r"16 prompts in a row cannot be made; the last: .* too short"):
        asyncio.run(fit_prompts(counter(lambda text: 500, asked), OWN, 100, 1000, at_once=at_once))
    assert len(asked) < counted._IN_A_ROW + at_once


def test_a_server_that_does_not_count_is_not_asked_about_other_prompts() -> None:
    asked: list[str] = []

    def count(text: str) -> int:
        raise CannotCount("the server does not count prompt tokens")

    with pytest.raises(CannotCount, match="does not count"):
        asyncio.run(fit_prompts(counter(count, asked), OWN, 100, 1000))
    assert len(asked) <= 2  # of a thousand
