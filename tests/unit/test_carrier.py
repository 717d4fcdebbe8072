"""Which files of pytest-benchmark may be compared with each other."""

from __future__ import annotations

from typing import Any

from pytest_ddtree.carrier import DECIDES, KEY, setting_differences


def info(**changes: Any) -> dict[str, Any]:
    values: dict[str, Any] = dict.fromkeys(DECIDES, "same") | {"gpu.driver": "575", "engine.revision": "abc"}
    return {"node": "host", KEY: values | changes}


def test_the_same_gpu_and_models_are_comparable_whatever_else_changed() -> None:
    assert setting_differences(info(), info(**{"gpu.driver": "580", "engine.revision": "def"})) == []


def test_another_gpu_is_named() -> None:
    before = info(**{"gpu.name": "NVIDIA H100"})
    assert setting_differences(before, info(**{"gpu.name": "NVIDIA H200"})) == [
        "gpu.name: was NVIDIA H100, is NVIDIA H200"
    ]


def test_a_file_of_other_tests_is_not_comparable() -> None:
    (difference,) = setting_differences({"node": "host"}, info())
    assert "says nothing of GPU and model" in difference
