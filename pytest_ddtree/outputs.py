"""Where a session will write, checked before it starts: a night's figures must not meet a full answer at their very end."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from pytest_ddtree.options import BY_FIELD, OptionError, Settings
from pytest_ddtree.results.expected_files import is_folder

FOLDERS = ("results", "records", "write_samples")


def check_outputs(settings: Settings) -> None:
    """Refuse places that cannot be written: results, records, samples, the HTML report, expected figures that are to be updated.

    A plan writes to none of them, so it only refuses what can be no such place. Leaves nothing behind.

    Raises:
        OptionError: naming the option, the place, and what is wrong with it.
    """
    written = not settings.plan
    for name in FOLDERS:
        folder: Path | None = getattr(settings, name)
        if folder is not None:
            _check_folder(name, folder, folder, written)
    if settings.html is not None:
        if settings.html.is_dir():
            raise OptionError(f"{BY_FIELD['html'].flag} {settings.html}: is a directory; it takes a file")
        _check_folder("html", settings.html, settings.html.parent, written)
        if written and settings.html.exists() and not os.access(settings.html, os.W_OK):
            raise OptionError(f"{BY_FIELD['html'].flag} {settings.html}: cannot be written")
    if settings.expected is not None and (settings.update_expected or settings.update_new):
        # A file is replaced by a new one beside it, so its folder is what has to be writable.
        folder = settings.expected if is_folder(settings.expected) else settings.expected.resolve().parent
        _check_folder("expected", settings.expected, folder, written)


def _check_folder(name: str, given: Path, folder: Path, written: bool) -> None:
    place = folder.absolute()
    while not place.exists():
        place = place.parent
    flag = BY_FIELD[name].flag
    if not place.is_dir():
        raise OptionError(f"{flag} {given}: {place} is no directory that can be written")
    if not written:
        return
    try:
        # Permissions say yes to root, and on file systems that take no files; an unnamed file says what is true.
        with tempfile.TemporaryFile(dir=place):
            pass
    except OSError as error:
        why = error.strerror or str(error)
        raise OptionError(f"{flag} {given}: {place} is no directory that can be written ({why})") from None
