"""Text prompts of an exact number of tokens where only the server can count them (OpenAI endpoints)."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass

from pytest_ddtree.client.records import Request, Sampling
from pytest_ddtree.errors import Infrastructure
from pytest_ddtree.workload.load import Generates
from pytest_ddtree.workload.texts import Workload

# One token in every vocabulary that anybody serves, and one more token for each of them but perhaps the first.
_FILLER = " a"
_FILLED = 8
"""Tokens that are filled up rather than looked for in the text."""
_PROBES = 64
"""Far more than any tokenizer needs (docs/measuring.md): what is bounded is a server whose counts lead nowhere."""

_IN_A_ROW = 16
"""Prompts in a row that cannot be made, after which no more are tried."""

Count = Callable[[str], Awaitable[int]]


class CannotCount(Infrastructure):
    """The server does not say how many tokens a prompt has, or no prompt of the length can be made."""


class DoesNotFit(CannotCount):
    """This prompt cannot be made as long as that; another one perhaps can."""


@dataclass(frozen=True, slots=True)
class TextPrompt:
    """A prompt as text and its number of tokens as the server counts them, chat template included."""

    text: str
    tokens: int
    tag: str


def server_count(client: Generates, deadline_s: float = 60.0) -> Count:
    """Counts tokens by asking the server for one token of answer. Raises CannotCount."""

    async def count(text: str) -> int:
        request = Request(sampling=Sampling(max_new_tokens=1), text=text, tag="counting")
        record = (await client.ask(request, stream=False, deadline_s=deadline_s)).record()
        if record.prompt_tokens is None:
            raise CannotCount(f"the server does not count prompt tokens: {record.outcome}: {record.error}")
        return record.prompt_tokens

    return count


async def fit_prompt(
    count: Count, workload: Workload, tokens: int, index: int, *, seed: int = 0
) -> TextPrompt:
    """Prompt number `index` of a workload with exactly `tokens` tokens.

    A bracket around the number of words that fit is narrowed until little or nothing is missing; then single-token words at the
    document's end make up the rest, and where these and the text run together, a word of the text goes.

    Raises CannotCount: DoesNotFit when template and question alone are longer, or the server's counts do not lead there.
    """
    rng = random.Random(f"{seed}/{workload.name}/{tokens}/{index}")
    question = workload.questions[index % len(workload.questions)]
    opening = f"# {rng.getrandbits(32):08x} {workload.name} {index}\n\n"
    source = _words(workload, rng)
    words: list[str] = []
    counted: dict[tuple[int, int], int] = {}

    def text(length: int, fillers: int) -> str:
        words.extend(itertools.islice(source, max(0, length - len(words))))
        return f"{opening}{''.join(words[:length])}{_FILLER * fillers}\n\n{question}"

    async def ask(length: int, fillers: int) -> int:
        if (length, fillers) in counted:
            return counted[length, fillers]
        if len(counted) >= _PROBES:
            raise DoesNotFit(
                f"no prompt of exactly {tokens} tokens was found within {_PROBES} probes; these had {min(counted.values())} to "
                f"{max(counted.values())}"
            )
        counted[length, fillers] = have = await count(text(length, fillers))
        return have

    length, have = 0, await ask(0, 0)
    if have > tokens:
        raise DoesNotFit(f"a prompt of {tokens} tokens is too short: template and question need {have}")
    per_word = 1.5
    too_long: tuple[int, int] | None = None
    while tokens - have > _FILLED:
        # Fall short rather than long: what is missing is filled up.
        step = max(1, int(0.98 * (tokens - have) / per_word))
        if too_long is not None:
            room = too_long[0] - length
            if room == 1:
                break
            # A bracket that does not shrink by reckoning is halved.
            reckoned = int(room * (tokens - have) / (too_long[1] - have))
            step = min(max(1, reckoned), room - 1) if len(counted) % 3 else room // 2
        then = await ask(length + step, 0)
        if too_long is None and then > have:
            per_word = (then - have) / step
        if then <= tokens:
            length, have = length + step, then
        else:
            too_long = (length + step, then)
    fillers = 0
    while have != tokens:
        fillers += tokens - have
        if fillers < 0 or (length, fillers) in counted:
            if length == 0:
                raise DoesNotFit(f"no prompt of exactly {tokens} tokens was found: the last had {have}")
            length, fillers = length - 1, max(0, fillers)
        have = await ask(length, fillers)
    return TextPrompt(text(length, fillers), have, f"{workload.name}-{tokens}-{index}")


async def fit_prompts(
    count: Count, workload: Workload, tokens: int, wanted: int, *, seed: int = 0, at_once: int = 1
) -> tuple[list[TextPrompt], list[DoesNotFit]]:
    """The first `wanted` prompts of a workload that can be made exactly `tokens` tokens long, and why others before the last cannot.

    Raises CannotCount where the server does not count, or where so many in a row cannot be made that none will.
    """
    gate = asyncio.Semaphore(at_once)
    failed: dict[int, DoesNotFit] = {}

    async def fitted(index: int) -> TextPrompt | None:
        async with gate:
            if not _hopeless(failed):
                try:
                    return await fit_prompt(count, workload, tokens, index, seed=seed)
                except DoesNotFit as error:
                    failed[index] = error
            return None

    found: list[TextPrompt] = []
    begun = 0
    while len(found) < wanted:
        more = range(begun, begun + wanted - len(found))
        begun = more.stop
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(fitted(index)) for index in more]
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from None
        found += filter(None, (task.result() for task in tasks))
        if _hopeless(failed):
            raise CannotCount(f"{_IN_A_ROW} prompts in a row cannot be made; the last: {failed[max(failed)]}")
    return found, [failed[index] for index in sorted(failed)]


def _hopeless(failed: Mapping[int, DoesNotFit]) -> bool:
    return any(all(index + more in failed for more in range(_IN_A_ROW)) for index in failed)


def _words(workload: Workload, rng: random.Random) -> Iterator[str]:
    """The words of all texts, without end, white space attached in front."""
    while True:
        order = list(workload.texts)
        rng.shuffle(order)
        for text in order:
            start = rng.randrange(len(text.units)) if text.units else 0
            for unit in text.units[start:]:
                yield "\n\n"
                for number, line in enumerate(unit.split(" ")):
                    yield line if number == 0 else f" {line}"
