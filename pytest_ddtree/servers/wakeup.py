"""The descriptor to which the interpreter writes when a signal comes (`signal.set_wakeup_fd`), where several owners may want it.

The last owner that is still there has it. Each putting back what it found would, ended in another order, leave a closed descriptor
behind, whose number belongs to any file by then.
"""

from __future__ import annotations

import contextlib
import signal

_owners: list[int] = []
_found: list[int] = []
"""What was set before the first owner came."""


def claim(descriptor: int) -> None:
    """Let signals be written to `descriptor`; in the main thread. Raises ValueError or OSError where it is none."""
    before = signal.set_wakeup_fd(descriptor, warn_on_full_buffer=False)
    if not _owners:
        _found[:] = [before]
    _owners.append(descriptor)


def give_up(descriptor: int) -> None:
    """No longer; the owner before, or what there was before all of them, has it again. In the main thread; may be called twice."""
    if descriptor not in _owners:
        return
    _owners.remove(descriptor)
    with contextlib.suppress(ValueError, OSError):
        signal.set_wakeup_fd(_owners[-1] if _owners else _found[0], warn_on_full_buffer=bool(not _owners))
