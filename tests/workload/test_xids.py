"""Faults that the GPU's driver reports in a round. A driver that reports one is made by hand: a real one does not on request."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace

import pytest

from pytest_ddtree.client.client import AsyncClient
from pytest_ddtree.workload.watching import Watch
from pytest_ddtree.workload.xids import XidWatch


async def test_a_neighbours_heat_is_no_concern_of_a_server_with_gpus_of_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As with --ddtree-gpu-groups 0/1: each worker's server has one of the two."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setitem(sys.modules, "pynvml", Heated())
    said = {}
    async with AsyncClient("http://127.0.0.1:9") as client:
        for gpus in (("0",), ("1",), None):
            watch = Watch(client, local_gpus=True, gpus=gpus)
            await watch.begin()
            said[gpus] = await watch.verdict(())
    hot = ("GPU 0 (H200) was throttled: hardware thermal slowdown",)
    assert said == {("0",): hot, ("1",): (), None: hot}


def test_any_machine_can_be_watched() -> None:
    assert XidWatch().close() == ()


class Driver(ModuleType):
    """NVML with two GPUs that reports these (GPU, Xid), and counts who uses it."""

    class NVMLError(Exception):
        pass

    nvmlEventTypeXidCriticalError = 8

    def __init__(self, *reports: tuple[int, int], events: bool = True) -> None:
        super().__init__("pynvml")
        self.reports = list(reports)
        self.has_events = events
        self.registered: list[int] = []
        self.users = self.sets = 0

    def nvmlInit(self) -> None:
        self.users += 1

    def nvmlShutdown(self) -> None:
        self.users -= 1

    def nvmlDeviceGetCount(self) -> int:
        return 2

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return 100 + index

    def nvmlDeviceGetIndex(self, handle: int) -> int:
        return handle - 100

    def nvmlEventSetCreate(self) -> str:
        self.sets += 1
        return "set"

    def nvmlEventSetFree(self, events: str) -> None:
        self.sets -= 1

    def nvmlDeviceRegisterEvents(self, handle: int, kinds: int, events: str) -> None:
        if not self.has_events:
            raise self.NVMLError("not supported")
        self.registered.append(handle)

    def nvmlEventSetWait_v2(self, events: str, timeout_ms: int) -> SimpleNamespace:
        assert timeout_ms == 0
        if not self.reports:
            raise self.NVMLError("timeout")
        index, number = self.reports.pop(0)
        return SimpleNamespace(device=100 + index, eventData=number)


class Heated(Driver):
    """The first of the two GPUs is too hot."""

    NVML_MEMORY_ERROR_TYPE_UNCORRECTED = NVML_VOLATILE_ECC = NVML_PERF_POLICY_THERMAL = 0

    def nvmlDeviceGetName(self, handle: int) -> str:
        return "H200"

    def nvmlDeviceGetCurrentClocksEventReasons(self, handle: int) -> int:
        return 0x40 if handle == 100 else 0

    def nvmlDeviceGetTotalEccErrors(self, *asked: int) -> int:
        raise self.NVMLError("not supported")

    def nvmlDeviceGetViolationStatus(self, *asked: int) -> SimpleNamespace:
        raise self.NVMLError("not supported")


def test_what_the_driver_reports_of_the_gpus_in_use_is_collected_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # 31 is a program's own page fault, perhaps a neighbour's.
    driver = Driver((1, 79), (1, 31), (1, 79), (1, 48))
    monkeypatch.setitem(sys.modules, "pynvml", driver)
    watch = XidWatch({1})
    assert driver.registered == [101]
    assert watch.close() == ("Xid 79 on GPU 1", "Xid 48 on GPU 1")
    assert watch.close() == ()
    assert (driver.users, driver.sets) == (0, 0)


def test_a_driver_without_events_reports_nothing_and_keeps_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Driver((0, 79), events=False)
    monkeypatch.setitem(sys.modules, "pynvml", driver)
    assert XidWatch().close() == ()
    assert (driver.users, driver.sets) == (0, 0)
