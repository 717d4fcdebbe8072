"""See a corruption again: alone, with fewer tokens, with a shorter prompt."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace

from pytest_ddtree.client.client import AsyncClient
from pytest_ddtree.client.records import Record, Request, Sampling
from pytest_ddtree.exactness.levels import teacher_force
from pytest_ddtree.exactness.prompts import Prompt, emitted_ids
from pytest_ddtree.exactness.report import Reproduction

Judged = Callable[[Prompt, Record], Awaitable[bool]]
"""Whether an answer to a prompt is corrupt."""


def gap_above(baseline: AsyncClient, limit: float) -> Judged:
    """Corrupt: some token has a gap above `limit` nats under the live baseline."""

    async def judged(prompt: Prompt, record: Record) -> bool:
        (answer,) = await teacher_force(baseline, [prompt], {prompt.tag: record}, top=1, concurrency=1)
        return answer.tokens > 0 and float(answer.gaps().max()) > limit

    return judged


def same_token(prompt: Prompt, position: int, token_id: int) -> Judged:
    """Corrupt, where no baseline is at hand: the same wrong token comes again at the same position of the same prompt.

    Of another prompt nothing can be said: such a one is never corrupt.
    """

    async def judged(asked: Prompt, record: Record) -> bool:
        emitted = emitted_ids(record)
        return asked.ids == prompt.ids and position < len(emitted) and emitted[position] == token_id

    return judged


async def reproduce(
    client: AsyncClient,
    prompt: Prompt,
    sampling: Sampling,
    position: int,
    corrupt: Judged,
    *,
    shorten: bool = True,
    requests: int = 16,
    deadline_s: float = 120.0,
) -> tuple[Prompt, Reproduction]:
    """The shortest prompt and output found that still give a corrupt answer at concurrency 1.

    `position` is where the worst token of the known answer was. When the answer is right alone, the prompt
    comes back as it was. At most `requests` requests are made; the prompt loses tokens at its front, first
    halves, then quarters and so on, and keeps at least 4; it stays as it is unless `shorten`. An answer that is not ok
    counts as not corrupt.
    """
    left = requests

    async def fails(ids: tuple[int, ...], output: int) -> bool:
        nonlocal left
        if left == 0:
            return False
        left -= 1
        shorter = Prompt(prompt.tag, ids)
        request = Request(sampling=replace(sampling, max_new_tokens=output), input_ids=ids, tag=prompt.tag)
        record = await client.generate(request, deadline_s=deadline_s)
        return record.ok and await corrupt(shorter, record)

    output = sampling.max_new_tokens
    if not await fails(prompt.ids, output):
        return prompt, Reproduction(alone=False)
    # The corrupt token itself is the last one that is needed, if the answer takes the same way again.
    for shorter_output in (position + 1, position + 8, (position + output) // 2):
        if shorter_output < output and await fails(prompt.ids, shorter_output):
            output = shorter_output
            break
    ids = prompt.ids
    cut = len(ids) // 2 if shorten else 0
    while cut and left:
        if len(ids) - cut >= 4 and await fails(ids[cut:], output):
            ids = ids[cut:]
            cut = min(cut, len(ids) // 2)
        else:
            cut //= 2
    return Prompt(prompt.tag, ids), Reproduction(alone=True, output=output)
