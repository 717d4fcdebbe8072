"""The one thing that errors of all parts have in common: whether they say something about the engine or about the test bench."""

from __future__ import annotations

import errno
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


class Infrastructure(Exception):
    """Something that the tests need is not there: no server, no sandbox, an answer that never came. Never a verdict on the engine."""


class NotVerified(Infrastructure):
    """A config could not be judged; the text says why. Never a pass, and no verdict on the engine either."""


class NotKept(Infrastructure):
    """What was found cannot be written down; the text names the file and says what to do."""


def not_kept(path: Path, error: OSError) -> NotKept:
    """The error for a file of a run that cannot be written."""
    why = error.strerror or str(error)
    return NotKept(
        f"{path}: cannot be written ({why}). Nothing is measured that cannot be kept; what the file holds is whole. {_remedy(error)}"
    )


@contextmanager
def writing(path: Path) -> Generator[None]:
    """What goes wrong inside names the file: an open file that cannot be written to does not say its name. Raises OSError."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            error.filename = str(path)
        raise


def no_room(error: OSError) -> NotKept | None:
    """The error for a write that failed because a disk is full, wherever it was; None for any other fault."""
    if error.errno not in _FULL:
        return None
    place = error.filename or "a file (for temporary files: $TMPDIR)"
    return NotKept(
        f"{place}: cannot be written ({error.strerror}). Nothing is measured that cannot be kept. {_remedy(error)}"
    )


def _remedy(error: OSError) -> str:
    return "Make room on that disk" if error.errno in _FULL else "Make that place writable"
