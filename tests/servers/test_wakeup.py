"""Several pools in one process want to hear of signals at once: whoever ends first, nobody's closed descriptor is left behind."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_ddtree.servers import wakeup


@pytest.fixture(autouse=True)
def as_it_was() -> Iterator[None]:
    before = signal.set_wakeup_fd(-1)
    yield
    signal.set_wakeup_fd(before)


def current() -> int:
    found = signal.set_wakeup_fd(-1)
    signal.set_wakeup_fd(found, warn_on_full_buffer=False)
    return found


@given(order=st.permutations(range(4)), set_before=st.booleans())
def test_the_last_that_is_there_has_it_and_in_the_end_who_had_it_before(
    order: list[int], set_before: bool
) -> None:
    pipes = [os.pipe2(os.O_NONBLOCK) for _ in range(5)]
    try:
        before = pipes[4][1] if set_before else -1
        signal.set_wakeup_fd(before)
        ends = [pipes[number][1] for number in range(4)]
        for end in ends:
            wakeup.claim(end)
            assert current() == end
        left = list(ends)
        for number in order:
            wakeup.give_up(ends[number])
            wakeup.give_up(ends[number])
            left.remove(ends[number])
            assert current() == (left[-1] if left else before)
    finally:
        signal.set_wakeup_fd(-1)
        for pair in pipes:
            for end in pair:
                os.close(end)
