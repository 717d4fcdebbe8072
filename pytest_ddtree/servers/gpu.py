"""GPUs as NVML sees them: identities for locks, and which process ids still hold memory. Optional: without NVML it says so."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class Gpu:
    """One device; memory in bytes."""

    index: int
    uuid: str
    name: str
    total: int
    free: int


class Gpus(Protocol):
    """What the life cycle asks of the GPUs of a host."""

    def devices(self) -> Sequence[Gpu]:
        """All devices, in NVML's order."""

    def holders(self) -> set[int]:
        """Process ids (of this pid namespace) that hold memory on any device."""


class Nvml:
    """NVML through nvidia-ml-py."""

    def __init__(self) -> None:
        import pynvml

        self._nvml: Any = pynvml
        pynvml.nvmlInit()

    def devices(self) -> list[Gpu]:
        nvml = self._nvml
        found = []
        for index in range(nvml.nvmlDeviceGetCount()):
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
            memory = nvml.nvmlDeviceGetMemoryInfo(handle)
            uuid, name = nvml.nvmlDeviceGetUUID(handle), nvml.nvmlDeviceGetName(handle)
            found.append(Gpu(index, _text(uuid), _text(name), int(memory.total), int(memory.free)))
        return found

    def holders(self) -> set[int]:
        nvml = self._nvml
        pids: set[int] = set()
        for index in range(nvml.nvmlDeviceGetCount()):
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
            for ask in (
                nvml.nvmlDeviceGetComputeRunningProcesses,
                nvml.nvmlDeviceGetGraphicsRunningProcesses,
            ):
                with contextlib.suppress(nvml.NVMLError):
                    pids |= {int(process.pid) for process in ask(handle)}
        return pids


def load() -> Gpus | None:
    """NVML, or None where there is no driver or no nvidia-ml-py."""
    with contextlib.suppress(Exception):
        return Nvml()
    return None


def visible(wanted: Sequence[str] | None, gpus: Gpus | None) -> tuple[str, ...]:
    """What identifies the GPUs that a server of these settings will use: UUIDs where NVML knows them, else what was written.

    `wanted` are indices or UUIDs; None: what CUDA_VISIBLE_DEVICES says, else all. A host without NVML and without any hint gives
    `("unknown",)`, so that its runs wait for each other.
    """
    if wanted is None:
        listed = os.environ.get("CUDA_VISIBLE_DEVICES")
        wanted = [part.strip() for part in listed.split(",") if part.strip()] if listed is not None else None
    devices = list(gpus.devices()) if gpus is not None else []
    if wanted is None:
        return tuple(device.uuid for device in devices) or ("unknown",)
    return tuple(_identity(word, devices) for word in wanted)


def _identity(word: str, devices: Sequence[Gpu]) -> str:
    for device in devices:
        if (
            word == str(device.index)
            or device.uuid == word
            or (word.startswith("GPU-") and device.uuid.startswith(word))
        ):
            return device.uuid
    return f"index-{word}" if word.isdigit() else word


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
