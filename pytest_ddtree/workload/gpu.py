"""What NVML says about the GPUs of this machine; nothing where there is no NVML."""

from __future__ import annotations

import os
import time
from collections.abc import Collection
from typing import Any

from pytest_ddtree.workload.validity import GpuState

# Names of the bits of nvmlDeviceGetCurrentClocksEventReasons that make a figure unfit for comparison.
_REASONS = {
    0x0000000000000008: "hardware slowdown",
    0x0000000000000020: "software thermal slowdown",
    0x0000000000000040: "hardware thermal slowdown",
    0x0000000000000080: "hardware power brake",
}


def throttle_reasons(bits: int) -> tuple[str, ...]:
    """The reasons in NVML's bit mask that matter."""
    return tuple(name for bit, name in _REASONS.items() if bits & bit)


def visible_indices(listed: str | None = None) -> frozenset[int] | None:
    """The GPUs that CUDA_VISIBLE_DEVICES (or `listed`) names by index; None where it names none, or by UUID: any may be in use."""
    listed = os.environ.get("CUDA_VISIBLE_DEVICES", "") if listed is None else listed
    words = [word.strip() for word in listed.split(",") if word.strip()]
    return frozenset(map(int, words)) if words and all(word.isdigit() for word in words) else None


def read_gpus(wanted: Collection[int] | None = None) -> tuple[GpuState, ...]:
    """The state of every GPU, or of those of `wanted`; empty without NVML or without a GPU."""
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception:  # no package, no driver, no device: there is nothing to watch
        return ()
    try:
        indices = range(pynvml.nvmlDeviceGetCount())
        return tuple(_read(pynvml, index) for index in indices if wanted is None or index in wanted)
    finally:
        pynvml.nvmlShutdown()


def _read(nvml: Any, index: int) -> GpuState:
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    name = nvml.nvmlDeviceGetName(handle)
    try:
        bits = int(nvml.nvmlDeviceGetCurrentClocksEventReasons(handle))
    except nvml.NVMLError:
        bits = 0
    try:
        errors = nvml.nvmlDeviceGetTotalEccErrors(
            handle, nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC
        )
    except nvml.NVMLError:
        errors = None
    try:
        slowed = int(nvml.nvmlDeviceGetViolationStatus(handle, nvml.NVML_PERF_POLICY_THERMAL).violationTime)
    except nvml.NVMLError:
        slowed = None
    return GpuState(
        index=index,
        slowed_ns=slowed,
        at_ns=time.monotonic_ns(),
        name=name if isinstance(name, str) else name.decode(),
        throttle=throttle_reasons(bits),
        uncorrected_ecc=errors,
    )
