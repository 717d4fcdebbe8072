"""Hypothesis as the generator of schedules, without its shrinker: races do not replay."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from random import Random

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from hypothesis.database import DirectoryBasedExampleDatabase

from pytest_ddtree.exactness.prompts import Prompt
from pytest_ddtree.exactness.search import random_trace
from pytest_ddtree.exactness.trace import Trace


class _Failed(Exception):
    """A trace failed; tells Hypothesis to remember it."""


def traces(prompts: Sequence[Prompt], *, requests: int = 8, output: int = 48) -> st.SearchStrategy[Trace]:
    """Schedules of 2 to `requests` requests over these prompts."""
    sizes = st.integers(2, max(2, requests))

    def build(chance: Random, size: int) -> Trace:
        return random_trace(prompts, chance, requests=size, output=output)

    return st.builds(build, st.randoms(use_true_random=False), sizes)


def fuzz(
    fails: Callable[[Trace], str | None],
    prompts: Sequence[Prompt],
    *,
    examples: int,
    database: Path,
    requests: int = 8,
    output: int = 48,
) -> tuple[Trace, str] | None:
    """Run up to `examples` schedules; the first that fails, with the reason, else None.

    A schedule that failed in an earlier session is in `database` and comes first.
    """
    failed: list[tuple[Trace, str]] = []

    @settings(
        max_examples=examples,
        deadline=None,
        database=DirectoryBasedExampleDatabase(database),
        phases=(Phase.reuse, Phase.generate),
        suppress_health_check=list(HealthCheck),
        report_multiple_bugs=False,
        print_blob=False,
    )
    @given(traces(prompts, requests=requests, output=output))
    def search(trace: Trace) -> None:
        if failed:
            # Hypothesis runs a failure once more to show it; whether it repeats is found out elsewhere.
            raise _Failed
        why = fails(trace)
        if why is not None:
            failed.append((trace, why))
            raise _Failed

    with suppress(_Failed):
        search()
    return failed[0] if failed else None
