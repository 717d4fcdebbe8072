"""Text prompts of an exact number of tokens where only the server can count them (OpenAI endpoints)."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass

from pytest_ddtree.client.records import Request, Sampling
from pytest_ddtree.errors import Infrastructure
from pytest_ddtree.workload.load import Generates
from pytest_ddtree.workload.texts import Workload

# One token in every vocabulary that anybody serves.
_FILLER = " a"
_PROBES = 8

Count = Callable[[str], Awaitable[int]]


class CannotCount(Infrastructure):
    """The server does not say how many tokens a prompt has, or no prompt of the length can be made."""


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

    A few probes find how much of the document fits; single-token words at its end make up the rest. Raises
    CannotCount when template and question alone are as long, or the server's counts do not lead there.
    """
    rng = random.Random(f"{seed}/{workload.name}/{tokens}/{index}")
    question = workload.questions[index % len(workload.questions)]
    opening = f"# {rng.getrandbits(32):08x} {workload.name} {index}\n\n"
    words = _words(workload, rng)
    document: list[str] = []
    fillers = 0
    per_word = 1.5

    def text() -> str:
        return f"{opening}{''.join(document)}{_FILLER * fillers}\n\n{question}"

    have = await count(text())
    if have > tokens:
        raise CannotCount(f"a prompt of {tokens} tokens is too short: template and question need {have}")
    for _ in range(_PROBES):
        if have == tokens:
            return TextPrompt(text(), have, f"{workload.name}-{tokens}-{index}")
        missing = tokens - have
        added = 0
        if missing < 0:
            removed = min(len(document), max(1, round(-missing / per_word)))
            if removed:
                del document[-removed:]
            else:
                fillers = max(0, fillers + missing)
        elif missing <= 8 or fillers:
            fillers += missing
        else:
            # Fall short rather than long: what is missing is filled up with words of one token.
            added = max(1, int(0.98 * missing / per_word))
            document += [next(words) for _ in range(added)]
        before = have
        have = await count(text())
        if added and have > before:
            per_word = (have - before) / added
    raise CannotCount(
        f"no prompt of exactly {tokens} tokens was found within {_PROBES} probes; the last had {have}"
    )


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
