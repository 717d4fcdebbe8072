"""Schedules of requests as values: what a search tries, saves, runs again and makes smaller."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar

from pytest_ddtree.client.generate import sampling_params
from pytest_ddtree.client.records import Request
from pytest_ddtree.errors import writing

Action = Literal["submit", "cancel", "flush", "wait"]
Item = TypeVar("Item")


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One thing that is done to the server.

    `submit` sends the prompt `ids` for `output` tokens under the name `request`; `cancel` breaks that request
    off after `delay_s`; `flush` empties the cache as soon as the server is idle; `wait` waits for `request`,
    or for all when it is None. Plain greedy answers are judged; with a temperature above 0 they are only
    neighbours unless `judged` says otherwise.
    """

    action: Action
    request: int | None = None
    ids: tuple[int, ...] = ()
    output: int = 0
    stream: bool = True
    temperature: float = 0.0
    delay_s: float = 0.0
    extra: Mapping[str, Any] = field(default_factory=dict)
    ignore_eos: bool = False
    judged: bool = False
    """Whether the answer is judged although it is not a plain greedy one: its parameters leave only the best token."""


def step_of(number: int, request: Request, ids: tuple[int, ...]) -> Step:
    """The submission of a request whose answer is judged, with these ids as its prompt."""
    params = sampling_params(request.sampling)
    for name in ("max_new_tokens", "temperature", "ignore_eos", "sampling_seed"):
        params.pop(name, None)
    return Step(
        action="submit",
        request=number,
        ids=ids,
        output=request.sampling.max_new_tokens,
        temperature=request.sampling.temperature,
        extra=params,
        ignore_eos=request.sampling.ignore_eos,
        judged=True,
    )


@dataclass(frozen=True, slots=True)
class Trace:
    """Steps in order."""

    steps: tuple[Step, ...]

    @property
    def requests(self) -> int:
        """How many requests it submits."""
        return sum(1 for step in self.steps if step.action == "submit")

    def sound(self) -> Trace:
        """The same without steps that name a request which was not submitted before."""
        known: set[int] = set()
        kept = []
        for step in self.steps:
            if step.action == "submit" and step.request is not None:
                known.add(step.request)
            elif step.request is not None and step.request not in known:
                continue
            kept.append(step)
        return Trace(tuple(kept))

    def save(self, path: Path, **facts: Any) -> None:
        """Write the trace with some facts about it as JSON; raises OSError."""
        path.parent.mkdir(parents=True, exist_ok=True)
        value = {"schema": 1, **facts, "steps": [asdict(step) for step in self.steps]}
        with writing(path):
            path.write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, path: Path) -> Trace:
        """The trace that `save` wrote; raises OSError, or ValueError for what is no trace."""
        try:
            steps = json.loads(path.read_text(encoding="utf-8"))["steps"]
            return cls(tuple(Step(**{**step, "ids": tuple(step["ids"])}) for step in steps))
        except (KeyError, TypeError, AttributeError, RecursionError) as error:
            raise ValueError(f"this is no saved trace: {type(error).__name__}: {error}") from None


class NothingToMinimise(ValueError):
    """The whole sequence does not fail."""


async def ddmin(items: Sequence[Item], fails: Callable[[Sequence[Item]], Awaitable[bool]]) -> list[Item]:
    """A subsequence that still fails and from which no single item can be left out.

    Zeller and Hildebrandt's minimising delta debugging: first without each of n parts, then with finer parts.
    `fails` is asked about subsequences only, never twice about the same. Raises NothingToMinimise when the whole
    sequence does not fail.
    """
    known: dict[tuple[int, ...], bool] = {}

    async def test(kept: list[int]) -> bool:
        key = tuple(kept)
        if key not in known:
            known[key] = await fails([items[index] for index in kept])
        return known[key]

    current = list(range(len(items)))
    if not await test(current):
        raise NothingToMinimise("the whole sequence does not fail, so there is nothing to minimise")
    parts = 2
    while len(current) >= 2:
        size = -(-len(current) // parts)
        chunks = [current[start : start + size] for start in range(0, len(current), size)]
        for chunk in chunks:
            rest = [index for index in current if index not in set(chunk)]
            if rest and await test(rest):
                current, parts = rest, max(parts - 1, 2)
                break
        else:
            if size == 1:
                break
            parts = min(2 * parts, len(current))
    return [items[index] for index in current]
