"""The lease on a unit's own host: a transient timer that puts the unit back unless it is renewed in time."""

from __future__ import annotations

import contextlib
import shlex
import threading

from pytest_ddtree.servers.errors import ServerError, StartFailed
from pytest_ddtree.servers.unit import DROP_IN, Unit

LEASE_S = 180.0
"""After this long without renewal the unit's host restores the unit by itself."""


class Lease:
    """Held from the first drop-in to the end, renewed by a thread of its own."""

    def __init__(self, unit: Unit, token: str, seconds: float) -> None:
        """`token` tells this run's timers from others'."""
        self.seconds = seconds
        self.was_active = False
        """Whether the unit ran before we came."""
        self._unit = unit
        self._token = token
        self._lock = threading.Lock()
        self._number = 0
        self._known = 0
        """The last timer that is known to stand; later ones may, where the answer to setting them was lost."""
        self._renewer: threading.Thread | None = None
        self._ended = threading.Event()

    def restore_script(self) -> str:
        """Puts the unit back. Idempotent: does nothing where the drop-in is gone already."""
        unit, folder = shlex.quote(self._unit.name), shlex.quote(self._unit.folder)
        state = f"systemctl restart --no-block {unit}" if self.was_active else f"systemctl stop {unit}"
        timers = f"systemctl stop 'ddtree-lease-{self._token}-*.timer' 2>/dev/null"
        return (
            f"if [ -e {folder}/{DROP_IN} ]; then rm -f {folder}/{DROP_IN}; rmdir {folder} 2>/dev/null; systemctl daemon-reload; "
            f"{state}; fi; {timers}; true"
        )

    def hold(self) -> None:
        """Set or renew it; the new timer stands before the old ones go. Raises StartFailed."""
        with self._lock:
            self._number += 1
            name = f"ddtree-lease-{self._token}"
            old = " ".join(f"{name}-{number}.timer" for number in range(max(1, self._known), self._number))
            script = (
                f"systemd-run --quiet --collect --on-active={self.seconds:g} --unit={name}-{self._number} /bin/sh -c "
                f"{shlex.quote(self.restore_script())}"
            )
            if old:
                script += f" && (systemctl stop {old} 2>/dev/null; true)"
            done = self._unit.host.run(script)
            if not done.ok:
                raise StartFailed(
                    f"the lease that would restore unit {self._unit.name} after a lost link cannot be set on {self._unit.host.title}",
                    why=done.err.strip()[:400],
                    hint="systemd-run must be allowed for this account",
                )
            self._known = self._number
        if self._renewer is None:
            self._renewer = threading.Thread(target=self._renew, name="ddtree-lease", daemon=True)
            self._renewer.start()

    def end(self) -> None:
        """Renew it no more."""
        self._ended.set()
        if self._renewer is not None:
            self._renewer.join(30.0)

    def _renew(self) -> None:
        while not self._ended.wait(self.seconds / 4):
            # A lost link is what the lease is for; the next turn tries again.
            with contextlib.suppress(ServerError):
                self.hold()
