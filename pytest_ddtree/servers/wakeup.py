"""The descriptor to which the interpreter writes when a signal comes (`signal.set_wakeup_fd`), where several owners may want it.

The last owner that is still there has it, and says when a signal came (`pass_on`), so that the others are told. Each putting back what
it found would, ended in another order, leave a closed descriptor behind, whose number belongs to any file by then.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading

_owners: list[int] = []
_found: list[int] = []
"""What was set before the first owner came."""
_lock = threading.RLock()
"""No descriptor is written to whose owner has given it up. For ever so short a time: a handler may interrupt who holds it."""
_PASSED_ON = b"\xff"
"""No signal's number, so that what was passed on is not passed on again."""


def claim(descriptor: int) -> None:
    """Let signals be written to `descriptor`; in the main thread. Raises ValueError or OSError where it is none."""
    with _lock:
        before = signal.set_wakeup_fd(descriptor, warn_on_full_buffer=False)
        if not _owners:
            _found[:] = [before]
        _owners.append(descriptor)


def give_up(descriptor: int) -> None:
    """No longer; the owner before, or what there was before all of them, has it again. In the main thread; may be called twice."""
    with _lock:
        if descriptor not in _owners:
            return
        _owners.remove(descriptor)
        with contextlib.suppress(ValueError, OSError):
            signal.set_wakeup_fd(_owners[-1] if _owners else _found[0], warn_on_full_buffer=bool(not _owners))


def pass_on(descriptor: int) -> None:
    """The interpreter wrote a signal to `descriptor`: tell the other owners. From any thread; returns at once."""
    with _lock:
        for other in _owners:
            if other != descriptor:
                with contextlib.suppress(OSError):
                    os.write(other, _PASSED_ON)
