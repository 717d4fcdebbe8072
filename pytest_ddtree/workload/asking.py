"""The requests of a cell: which prompt, how long an answer, which seed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pytest_ddtree.client.records import Request, Sampling
from pytest_ddtree.workload.cell import CellSpec, MakeRequests
from pytest_ddtree.workload.prompts import PromptMaker


def sampling_for(
    spec: CellSpec, output: int, *, seed: int, extra: Mapping[str, Any] | None = None
) -> Sampling:
    """Sampling of one measured request. EOS is ignored only as a guard: prompts are chosen to answer for longer."""
    return Sampling(
        max_new_tokens=output,
        temperature=spec.temperature,
        ignore_eos=True,
        seed=seed if spec.temperature > 0 else None,
        extra=dict(extra or {}),
    )


def request_maker(
    maker: PromptMaker,
    spec: CellSpec,
    *,
    indices: Sequence[int] | None = None,
    extra: Mapping[str, Any] | None = None,
) -> MakeRequests:
    """Makes the requests of a cell: the same ones, in the same order, for every config (paired).

    `indices` are the prompts to use, over and over (each round begins on a flushed cache); None: a new one each time.
    `extra` are sampling parameters beside the temperature.
    """

    def ask(number: int, sampling: Sampling) -> Request:
        prompt = maker.make(spec.context, number if indices is None else indices[number % len(indices)])
        return Request(sampling=sampling, input_ids=prompt.ids, tag=prompt.tag)

    return in_order(spec, ask, extra=extra)


def in_order(
    spec: CellSpec, ask: Callable[[int, Sampling], Request], *, extra: Mapping[str, Any] | None
) -> MakeRequests:
    """Makes the requests of a cell; `ask` makes one, of its number within the cell and how its answer is sampled."""

    def make(first: int, lengths: Sequence[int]) -> list[Request]:
        return [
            ask(number, sampling_for(spec, length, seed=spec.seed + number, extra=extra))
            for number, length in enumerate(lengths, start=first)
        ]

    return make
