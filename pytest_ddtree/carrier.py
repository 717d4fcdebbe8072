"""pytest-benchmark as a carrier: what its files say of machine and engine, and which files may be compared with each other."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from typing import Any

import pytest

from pytest_ddtree.asked import asks_for_ours, given_of
from pytest_ddtree.options import make_settings
from pytest_ddtree.session import RUN, SETTINGS

KEY = "ddtree"
"""Where our values are in `machine_info`."""
DECIDES = ("gpu.name", "gpu.count", "cpu.count", "model.name", "model.weights", "draft.name", "draft.weights")
"""What must agree before two files may be compared: a figure of another GPU or model says nothing about a patch."""
CARRIED = (
    *DECIDES,
    "gpu.driver",
    "gpu.cuda",
    "gpu.power_limit_w",
    "engine.kind",
    "engine.revision",
    "engine.diff",
    "engine.sources",
    "workload.digest",
    "plugin.version",
)


@pytest.hookimpl(optionalhook=True)
def pytest_benchmark_update_machine_info(
    config: pytest.Config, machine_info: MutableMapping[str, Any]
) -> None:
    """GPU, driver, CUDA, build and models; the momentary clock of the CPU goes, because it makes any two files differ."""
    if not _ours(config):
        return
    cpu = machine_info.get("cpu")
    if isinstance(cpu, MutableMapping):
        for name in [name for name in cpu if name.startswith("hz_actual")]:
            del cpu[name]
    machine_info[KEY] = carried(config)


@pytest.hookimpl(optionalhook=True, tryfirst=True)
def pytest_benchmark_compare_machine_info(
    config: pytest.Config, machine_info: Mapping[str, Any], compared_benchmark: Mapping[str, Any]
) -> None:
    """Refuse to compare with another GPU or model. pytest-benchmark asks before any test is known, so `-m` says whose run it is."""
    before = compared_benchmark.get("machine_info", {})
    if KEY not in before and not _ours(config):
        return
    differences = setting_differences(before, {KEY: carried(config)})
    if differences:
        raise pytest.UsageError(
            "--benchmark-compare: the saved figures are not of this machine and model, so they say nothing about these: "
            + "; ".join(differences)
        )


def carried(config: pytest.Config) -> dict[str, Any]:
    """The part of the session's fingerprint that goes into pytest-benchmark's files."""
    if RUN in config.stash:
        known = config.stash[RUN].fingerprint.values
    else:
        from pytest_ddtree.model_files import model_facts
        from pytest_ddtree.results.fingerprint import session_fingerprint

        settings = config.stash.get(SETTINGS, None) or make_settings(given_of(config))
        known = session_fingerprint(settings, model_facts(settings), date="").values
    return {name: known[name] for name in CARRIED if name in known}


def _ours(config: pytest.Config) -> bool:
    return RUN in config.stash or asks_for_ours(config)


def setting_differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """What of GPU and models is not what it was, in words; a file that says nothing of them is one difference."""
    if KEY not in before:
        return ["the saved file says nothing of GPU and model: it was not written by this plugin's tests"]
    then, here = before[KEY], now.get(KEY, {})
    return [
        f"{name}: was {then.get(name, 'absent')}, is {here.get(name, 'absent')}"
        for name in DECIDES
        if then.get(name) != here.get(name)
    ]
