"""Faults of GPUs (Xid) that the driver reports while something runs; none where NVML does not tell."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

_OF_PROGRAMS = frozenset({13, 31, 43, 45, 68, 109})
"""Faults of one program on a healthy GPU: if it is the server it dies, if it is a neighbour's it is no concern of ours."""


class XidWatch:
    """Collects what the driver reports of GPUs from its making on; `close` says what it was. Needs no privilege."""

    def __init__(self, wanted: Collection[int] | None = None) -> None:
        """Watch the GPUs of these indices (None: all). Where NVML or its events are missing it sees nothing."""
        self._nvml: Any = None
        self._events: Any = None
        try:
            import pynvml

            pynvml.nvmlInit()
        except Exception:  # no package, no driver, no device: there is nothing to watch
            return
        self._nvml = pynvml
        try:
            self._events = pynvml.nvmlEventSetCreate()
            for index in range(pynvml.nvmlDeviceGetCount()):
                if wanted is None or index in wanted:
                    handle = pynvml.nvmlDeviceGetHandleByIndex(index)
                    pynvml.nvmlDeviceRegisterEvents(
                        handle, pynvml.nvmlEventTypeXidCriticalError, self._events
                    )
        except pynvml.NVMLError:
            # A driver of a virtual GPU has no events.
            self._free()

    def close(self) -> tuple[str, ...]:
        """What was reported since, in words; further calls say nothing."""
        found: list[str] = []
        while self._events is not None:
            try:
                event = self._nvml.nvmlEventSetWait_v2(self._events, 0)
            except self._nvml.NVMLError:
                # Nothing (more) is there: it does not wait.
                break
            if event.eventData not in _OF_PROGRAMS:
                index = self._nvml.nvmlDeviceGetIndex(event.device)
                found.append(f"Xid {event.eventData} on GPU {index}")
        self._free()
        return tuple(dict.fromkeys(found))

    def _free(self) -> None:
        nvml, events = self._nvml, self._events
        self._nvml = self._events = None
        if nvml is None:
            return
        try:
            if events is not None:
                nvml.nvmlEventSetFree(events)
        finally:
            nvml.nvmlShutdown()
