"""Many runs at a time, or one alone."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator


class Gate:
    """Runs enter shared; a re-run after a timeout enters alone. Who waits to be alone goes first."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._inside = 0
        self._waiting_alone = 0
        self._alone: int | None = None

    @contextlib.contextmanager
    def shared(self) -> Iterator[None]:
        """Free of charge for the thread that is alone."""
        me = threading.get_ident()
        with self._changed:
            if self._alone == me:
                nested = True
            else:
                nested = False
                while self._alone is not None or self._waiting_alone:
                    self._changed.wait()
                self._inside += 1
        try:
            yield
        finally:
            if not nested:
                with self._changed:
                    self._inside -= 1
                    self._changed.notify_all()

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Not to be entered from inside `shared`."""
        with self._changed:
            self._waiting_alone += 1
            try:
                while self._alone is not None or self._inside:
                    self._changed.wait()
                self._alone = threading.get_ident()
            finally:
                self._waiting_alone -= 1
        try:
            yield
        finally:
            with self._changed:
                self._alone = None
                self._changed.notify_all()
