"""Landlock by raw system calls: reading the standard library and dynamic libraries, nothing else.

Files are granted one by one where a folder may hold more than libraries: site-packages lies below the
standard library's folder in most installations, and problems with their answers lie in site-packages.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import struct
from collections.abc import Iterable, Iterator
from typing import Final

from .syscalls import Architecture

_EXECUTE, _WRITE, _READ, _LIST, _REMOVE_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3, 1 << 4
_ALL_OF_ABI_1: Final = (1 << 13) - 1
_REFER, _TRUNCATE, _IOCTL_DEV = 1 << 13, 1 << 14, 1 << 15
_TCP: Final = 0b11
_SCOPES: Final = 0b11  # abstract sockets and signals to processes outside
_PATH_BENEATH: Final = 1
_NOT_STDLIB: Final = frozenset({"site-packages", "dist-packages"})
_LIBRARY_FILES: Final = ("/etc/ld.so.cache",)


class Landlock:
    """The kernel's interface of one architecture."""

    def __init__(self, arch: Architecture) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._create = arch.numbers["landlock_create_ruleset"]
        self._add = arch.numbers["landlock_add_rule"]
        self._restrict = arch.numbers["landlock_restrict_self"]

    def abi(self) -> int:
        """The ABI version; raises OSError where Landlock is missing, switched off or filtered."""
        return self._call(self._create, None, 0, 1)

    def restrict_reading_to(self, paths: Iterable[str]) -> int:
        """Lets this process and its children read below `paths` and use no TCP port; returns the ABI used.

        Removing an empty folder stays a matter of file permissions: the zygote removes its own at the end,
        and its children have no system call for it. Needs no_new_privs.
        """
        abi = self.abi()
        handled = _ALL_OF_ABI_1 & ~_REMOVE_DIR
        handled |= _REFER if abi >= 2 else 0
        handled |= _TRUNCATE if abi >= 3 else 0
        handled |= _IOCTL_DEV if abi >= 5 else 0
        fields = [handled]
        if abi >= 4:
            fields.append(_TCP)
        if abi >= 6:
            fields.append(_SCOPES)
        attribute = struct.pack(f"={len(fields)}Q", *fields)
        ruleset = self._call(self._create, attribute, len(attribute), 0)
        try:
            for path in paths:
                self._grant(ruleset, path)
            self._call(self._restrict, ruleset, 0)
        finally:
            os.close(ruleset)
        return abi

    def _grant(self, ruleset: int, path: str) -> None:
        try:
            fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
        except OSError:
            return
        try:
            access = _READ | _LIST if os.path.isdir(path) else _READ
            rule = struct.pack("=Qi", access, fd)
            self._call(self._add, ruleset, _PATH_BENEATH, rule, 0)
        finally:
            os.close(fd)

    def _call(self, number: int, *arguments: bytes | int | None) -> int:
        converted = [ctypes.c_long(a) if isinstance(a, int) else ctypes.c_char_p(a) for a in arguments]
        result = int(self._libc.syscall(ctypes.c_long(number), *converted))
        if result < 0:
            error = ctypes.get_errno()
            raise OSError(error, os.strerror(error))
        return result


def readable_paths(search_path: Iterable[str], maps: str) -> Iterator[str]:
    """What imports and dlopen need: entries of the standard library's folders, and shared libraries one by
    one.

    `search_path` is `sys.path` of an interpreter without site-packages, `maps` the text of /proc/self/maps.
    """
    for folder in search_path:
        if os.path.isdir(folder):
            for name in _names(folder):
                if name not in _NOT_STDLIB:
                    yield os.path.join(folder, name)
        elif os.path.exists(folder):
            yield folder
    yield from _LIBRARY_FILES
    for folder in sorted(_library_folders(maps)):
        for name in _names(folder):
            if name.endswith(".so") or ".so." in name:
                yield os.path.join(folder, name)


def _library_folders(maps: str) -> set[str]:
    mapped = (line.split(maxsplit=5)[5] for line in maps.splitlines() if line.count(" ") >= 5 and "/" in line)
    return {os.path.dirname(path) for path in mapped if ".so" in path and path.startswith("/")}


def _names(folder: str) -> list[str]:
    with contextlib.suppress(OSError):
        return sorted(os.listdir(folder))
    return []
