"""A sweep whose set-up is broken stops early; one in which a single config fails, or is corrupt, goes on."""

from __future__ import annotations

import pytest

from pytest_ddtree.errors import Infrastructure
from pytest_ddtree.exactness.verdict import Verdict, VerdictKind
from pytest_ddtree.grid import Config
from pytest_ddtree.staging import Pilot, SweepStopped

CONFIGS = tuple(Config("tree", budget, 4) for budget in (4, 8, 16, 32))


def a_verdict(kind: VerdictKind) -> Verdict:
    return Verdict(
        kind=kind, level="full", config=CONFIGS[0].id, prompts=1, identical=1, tokens=9, off=0, largest=0.0,
        gap_limit=1.0, floor_largest=0.0, floor_share=0.0, floor_tokens=9, p_share=1.0,
    )  # fmt: skip


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def pilot(said: list[str]) -> Pilot:
    return Pilot(CONFIGS, progress=said.append)


def test_two_configs_that_cannot_be_started_end_the_sweep_and_say_why(pilot: Pilot) -> None:
    for config in CONFIGS[:2]:
        pilot.admit(config)
        pilot.failed(config, Infrastructure(f"{config.id}: no such flag\nand the log"))
        # Further tests of the same config say the same again.
        pilot.admit(config)
        pilot.failed(config, Infrastructure("again"))
    with pytest.raises(SweepStopped) as caught:
        pilot.admit(CONFIGS[2])
    assert "b16-k4-wnone is not tried" in str(caught.value)
    assert "b4-k4-wnone: no such flag" in str(caught.value)
    assert "b8-k4-wnone: no such flag" in str(caught.value)
    assert "and the log" not in str(caught.value)


def test_one_that_does_not_fit_into_the_memory_ends_nothing(pilot: Pilot, said: list[str]) -> None:
    pilot.failed(CONFIGS[0], Infrastructure("out of memory"))
    pilot.admit(CONFIGS[1])
    pilot.judged(CONFIGS[1], a_verdict("exact"))
    for config in CONFIGS[2:]:
        pilot.failed(config, Infrastructure("out of memory"))
    pilot.admit(CONFIGS[3])
    assert said == ["pilot b8-k4-wnone is exact; 3 more to go"]


def test_a_corrupt_pilot_lets_the_others_be_judged(pilot: Pilot) -> None:
    pilot.judged(CONFIGS[0], a_verdict("corrupt"))
    for config in CONFIGS[1:]:
        pilot.admit(config)
        pilot.failed(config, Infrastructure("out of memory"))


def test_a_single_config_is_no_sweep(said: list[str]) -> None:
    Pilot(CONFIGS[:1], progress=said.append).judged(CONFIGS[0], a_verdict("exact"))
    assert said == []
