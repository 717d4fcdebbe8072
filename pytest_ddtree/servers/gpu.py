"""GPUs as NVML sees them: identities for locks, and which process ids still hold memory. Optional: without NVML it says so."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from pytest_ddtree.servers import proc
from pytest_ddtree.servers.processes import until


@dataclass(frozen=True, slots=True)
class Gpu:
    """One device; memory in bytes, None where it has none of its own that the driver could tell of."""

    index: int
    uuid: str
    name: str
    total: int | None
    free: int | None


class Gpus(Protocol):
    """What the life cycle asks of the GPUs of a host."""

    def devices(self) -> Sequence[Gpu]:
        """All devices that answer, in NVML's order."""

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
            # One that is lost must not keep the others from being known, nor a server from being stopped.
            with contextlib.suppress(nvml.NVMLError):
                handle = nvml.nvmlDeviceGetHandleByIndex(index)
                uuid, name = nvml.nvmlDeviceGetUUID(handle), nvml.nvmlDeviceGetName(handle)
                found.append(Gpu(index, _text(uuid), _text(name), *self._memory(handle)))
        return found

    def _memory(self, handle: Any) -> tuple[int | None, int | None]:
        try:
            memory = self._nvml.nvmlDeviceGetMemoryInfo(handle)
        except self._nvml.NVMLError:
            return None, None
        return int(memory.total), int(memory.free)

    def holders(self) -> set[int]:
        nvml = self._nvml
        pids: set[int] = set()
        for index in range(nvml.nvmlDeviceGetCount()):
            for ask in (
                nvml.nvmlDeviceGetComputeRunningProcesses,
                nvml.nvmlDeviceGetGraphicsRunningProcesses,
            ):
                with contextlib.suppress(nvml.NVMLError):
                    pids |= {int(process.pid) for process in ask(nvml.nvmlDeviceGetHandleByIndex(index))}
        return pids


def load() -> Gpus | None:
    """NVML, or None where there is no driver or no nvidia-ml-py."""
    with contextlib.suppress(Exception):
        return Nvml()
    return None


def still_held(gpus: Gpus | None, pids: set[int], seconds: float) -> list[int]:
    """Which of these processes, which have ended, hold memory after the driver had this long to release it; none without NVML.

    An id whose process lives is somebody else's by now.
    """
    if gpus is None:
        return []

    def held() -> list[int]:
        return [pid for pid in sorted(gpus.holders() & pids) if not ((now := proc.read(pid)) and now.alive)]

    return held() if not until(lambda: not held(), seconds) else []


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
