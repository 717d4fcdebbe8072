"""The probe sees a window that acts, on the embedded server, and is not fooled by one that is only claimed."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_ddtree.client.loop import LoopThread
from pytest_ddtree.grid import Config
from pytest_ddtree.servers import behaviour
from pytest_ddtree.servers.behaviour import Answer, Evidence, Reading
from pytest_ddtree.servers.pool import ServerPool
from pytest_ddtree.servers.settings import ServerSettings

WINDOW = 128
WEIGHTS = Path(behaviour.__file__).parents[1] / "reference" / "weights"


@given(st.integers(52, 4096), st.integers(1, 5), st.integers())
def test_tasks(window: int, count: int, seed: int) -> None:
    near, far = behaviour.tasks(range(40_000), window, count, seed=seed)
    assert len(near) == len(far) == count
    for task in near + far:
        assert task.ids[-8:] == task.ids[:8]
        assert len(task.ids) - 8 == task.distance
    assert all(len(task.ids) + behaviour.OUTPUT <= window for task in near)
    assert all(task.distance > 6 * window for task in far)


@pytest.mark.parametrize(("text", "window", "message"), [(9999, 51, "no room"), (100, 128, "too few")])
def test_no_tasks(text: int, window: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        behaviour.tasks(range(text), window, 1)


def reading(near: list[int], far: list[int], step_s: float | None = None) -> Reading:
    return Reading(tuple(Answer(32, n, None) for n in near), tuple(Answer(32, n, step_s) for n in far))


def evidence(windowed: Reading, full: Reading) -> Evidence:
    return behaviour.compare(windowed, full)


def test_no_difference_is_no_effect() -> None:
    found = evidence(reading([9] * 6, [12] * 6, 0.01), reading([9] * 6, [12] * 6, 0.01))
    assert not found.acts
    assert "shows no effect: steps differ on 0 of 6 far and 0 of 6 near tasks" in found.summary()


def test_noise_on_both_sides_is_no_effect() -> None:
    assert not evidence(
        reading([9, 8, 9, 9, 8, 9], [12, 11, 12, 11, 12, 12]), reading([9] * 6, [12] * 6)
    ).acts


def test_more_steps_far_away_is_an_effect() -> None:
    found = evidence(reading([9] * 6, [20, 19, 18, 20, 21, 12]), reading([9] * 6, [12] * 6))
    assert found.acts
    assert found.changed_far == 5


def timed(near: list[float], far: list[float]) -> Reading:
    return Reading(tuple(Answer(32, 9, s) for s in near), tuple(Answer(32, 9, s) for s in far))


def test_faster_steps_far_away_are_an_effect() -> None:
    windowed = timed([0.010, 0.0101, 0.0099, 0.0102], [0.010, 0.0104, 0.0102, 0.0101])
    full = timed([0.010, 0.0102, 0.0098, 0.0101], [0.020, 0.021, 0.0205, 0.0195])
    found = evidence(windowed, full)
    assert found.acts
    assert found.speedup == pytest.approx(2.0, rel=0.05)
    assert not evidence(full, windowed).acts


def test_a_machine_that_was_busy_meanwhile_is_no_effect() -> None:
    windowed = timed([0.010, 0.0101, 0.0099, 0.0102], [0.010, 0.0104, 0.0102, 0.0101])
    full = timed([0.020, 0.0202, 0.0198, 0.0201], [0.020, 0.021, 0.0205, 0.0195])
    assert not evidence(windowed, full).acts


@pytest.mark.slow
def test_on_the_embedded_server(tmp_path: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    if not (WEIGHTS / "target" / "model.safetensors").exists():
        pytest.skip("the weights of the embedded server are not there")
    text = (
        tokenizers.Tokenizer.from_file(str(WEIGHTS / "target" / "tokenizer.json"))
        .encode(Path(argparse.__file__).read_text())
        .ids
    )
    near, far = behaviour.tasks(text, WINDOW, behaviour.TASKS)
    settings = ServerSettings(kind="reference", run_dir=tmp_path, start_timeout_s=120.0, seed=0, slots=1)
    readings = {}
    loop = LoopThread()
    with ServerPool(settings) as pool:
        for window in (WINDOW, None):
            server = pool.get(Config("tree", 8, 4, window))
            readings[window] = loop.run(_read(server.url, near, far))
    loop.close()
    found = behaviour.compare(readings[WINDOW], readings[None])
    print(found.summary())
    assert found.acts
    assert found.changed_near == 0, "nothing is out of the window's sight"
    assert not behaviour.compare(readings[None], readings[None]).acts


async def _read(url: str, near: list[behaviour.Task], far: list[behaviour.Task]) -> Reading:
    from pytest_ddtree.client.client import AsyncClient

    async with AsyncClient(url) as client:
        return await behaviour.read(client, near, far)
