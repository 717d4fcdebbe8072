"""The probe sees a window that acts, on the embedded server, and is not fooled by one that is only claimed or hides what it holds."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_ddtree.servers import behaviour
from pytest_ddtree.servers.behaviour import Answer, Evidence, NoRoom, Reading


@given(st.integers(24, 2048), st.integers(1, 50), st.integers())
def test_tasks(window: int, count: int, seed: int) -> None:
    made = behaviour.tasks(range(40_000), window, longest=4 * window, count=count, seed=seed)
    assert len(made.near) == len(made.far) == count
    for ids in made.near + made.far:
        assert list(ids[-8:]) == list(range(ids[-8], ids[-8] + 8)), "the last words are found before"
        assert ids[-8] in ids[:-8]
        assert len(ids) + made.output <= 4 * window
    assert all(len(ids) + made.output <= window for ids in made.near)
    # The passage and what follows it for the length of the answer is farther away than the window.
    assert all(len(ids) - ids.index(ids[-8]) - made.output > window for ids in made.far)


@pytest.mark.parametrize(
    ("text", "window", "longest", "message"),
    [
        (9999, 16, 900, "no room"),
        (100, 128, 900, "too few"),
        (9999, 512, 600, "a window of 512 tokens is not reached: the server takes 600"),
    ],
)
def test_no_tasks(text: int, window: int, longest: int, message: str) -> None:
    with pytest.raises(NoRoom, match=message):
        behaviour.tasks(range(text), window, longest=longest)


def reading(near: list[int], far: list[int], step_s: float | None = None, *, exact: bool = False) -> Reading:
    return Reading(tuple(Answer(32, n, None) for n in near), tuple(Answer(32, n, step_s) for n in far), exact)


def evidence(windowed: Reading, full: Reading) -> Evidence:
    return behaviour.compare(windowed, full)


def test_no_difference_is_no_effect() -> None:
    found = evidence(reading([9] * 6, [12] * 6, 0.01), reading([9] * 6, [12] * 6, 0.01))
    assert not found.acts
    assert not found.hides
    assert "shows no effect: drafts differ on 0 of 6 far and 0 of 6 near tasks" in found.summary()


def test_noise_on_both_sides_is_no_effect() -> None:
    found = evidence(reading([9, 8, 9, 9, 8, 9], [12, 11, 12, 11, 12, 12]), reading([9] * 6, [12] * 6))
    assert not found.acts
    assert not found.hides


def test_more_steps_far_away_is_an_effect() -> None:
    assert evidence(reading([9] * 6, [20, 19, 18, 20, 21, 12]), reading([9] * 6, [12] * 6)).acts


@pytest.mark.parametrize("exact", [True, False])
def test_one_change_is_proof_in_float32_only(exact: bool) -> None:
    windowed, full = (reading([9] * 16, [12] * 15 + [n], exact=exact) for n in (13, 12))
    assert evidence(windowed, full).acts is exact


def test_time_is_no_proof_in_float32() -> None:
    windowed = Reading((Answer(32, 9, 0.01),) * 4, (Answer(32, 9, 0.01),) * 4, True)
    full = Reading((Answer(32, 9, 0.01),) * 4, (Answer(32, 9, 0.02),) * 4, True)
    assert not evidence(windowed, full).acts


def test_steps_of_another_size_are_another_draft() -> None:
    one, two = Answer(4, 2, None, (1, 3, 4)), Answer(4, 2, None, (1, 2, 4))
    assert one.differs(two)
    assert not one.differs(Answer(4, 2, None)), "the server sent several steps at once"
    assert one.differs(Answer(4, 3, None))


@pytest.mark.parametrize("exact", [True, False])
def test_more_steps_within_the_window_hide_something(exact: bool) -> None:
    windowed = reading([n + 1 + n % 3 for n in range(9, 33)], [15] * 24, exact=exact)
    found = evidence(windowed, reading(list(range(9, 33)), [12] * 24, exact=exact))
    assert found.hides
    assert "does not see what the window holds" in found.summary()


@given(st.lists(st.tuples(st.integers(5, 30), st.integers(-2, 2)), min_size=16, max_size=48))
def test_rounding_that_goes_both_ways_hides_nothing(steps: list[tuple[int, int]]) -> None:
    both = [(n, n + d) for n, d in steps] + [(n + d, n) for n, d in steps]
    windowed, full = ([pair[i] for pair in both] for i in (0, 1))
    assert not evidence(reading(windowed, windowed), reading(full, full)).hides


def test_one_server_alone() -> None:
    assert behaviour.alone(reading([9, 10, 8, 9] * 4, [19, 18, 21, 20] * 4)).acts
    assert not behaviour.alone(reading([9, 10, 8, 9] * 4, [9, 8, 10, 9] * 4)).acts


def timed(near: list[float], far: list[float]) -> Reading:
    return Reading(tuple(Answer(32, 9, s) for s in near), tuple(Answer(32, 9, s) for s in far))


def test_faster_steps_far_away_are_an_effect() -> None:
    windowed = timed([0.010, 0.0101, 0.0099, 0.0102], [0.010, 0.0104, 0.0102, 0.0101])
    full = timed([0.010, 0.0102, 0.0098, 0.0101], [0.020, 0.021, 0.0205, 0.0195])
    found = evidence(windowed, full)
    assert found.acts
    assert "a step is 1.99 times as fast far away" in found.summary()
    assert not evidence(full, windowed).acts


def test_a_machine_that_was_busy_meanwhile_is_no_effect() -> None:
    windowed = timed([0.010, 0.0101, 0.0099, 0.0102], [0.010, 0.0104, 0.0102, 0.0101])
    full = timed([0.020, 0.0202, 0.0198, 0.0201], [0.020, 0.021, 0.0205, 0.0195])
    assert not evidence(windowed, full).acts
