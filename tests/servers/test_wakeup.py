"""Several pools in one process want to hear of signals at once: whoever ends first, nobody's closed descriptor is left behind."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_ddtree.grid import Config
from pytest_ddtree.servers import wakeup
from pytest_ddtree.servers.lock import SharedLocks

from . import support


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


@given(heard=st.integers(0, 3), gone=st.integers(0, 3))
def test_what_one_heard_the_others_hear_who_are_still_there(heard: int, gone: int) -> None:
    pipes = [os.pipe2(os.O_NONBLOCK) for _ in range(4)]
    try:
        for _, end in pipes:
            wakeup.claim(end)
        wakeup.give_up(pipes[gone][1])
        wakeup.pass_on(pipes[heard][1])
        for number, (end, _) in enumerate(pipes):
            if number in (heard, gone):
                with pytest.raises(BlockingIOError):
                    os.read(end, 16)
            else:
                assert os.read(end, 16)
    finally:
        for pair in pipes:
            wakeup.give_up(pair[1])
            for end in pair:
                os.close(end)


def test_the_alarm_of_one_pool_is_its_own(tmp_path: Path) -> None:
    locks = SharedLocks()
    first, second = (support.pool(tmp_path / name, locks=locks, slots=2) for name in ("a", "b"))
    with first, second:
        for pool in (first, second):
            pool.wake_on_signals()
            pool.get(Config("tree", 8, 4))
        second.alarm()
        second.close()
        assert list(support.alive(tmp_path / "b")) == []
        # Its supervisor would refuse a start.
        assert first.get(Config("tree", 16, 4)).running
        assert first.get(Config("tree", 8, 4)).running
        assert len(first.starts) == 2
