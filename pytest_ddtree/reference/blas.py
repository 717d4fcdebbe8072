"""The number of threads NumPy's OpenBLAS uses, read and set in a running process."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

PREFIXES = ("scipy_openblas", "openblas")
SUFFIXES = ("64_", "")


def _library() -> ctypes.CDLL | None:
    maps = Path("/proc/self/maps")
    if not maps.is_file():
        return None
    path = _mapped(maps.read_text(encoding="utf-8", errors="surrogateescape"))
    return None if path is None else ctypes.CDLL(path)


def _mapped(maps: str) -> str | None:
    """The path of NumPy's OpenBLAS in the lines of ``/proc/PID/maps``, None where there is none."""
    for line in maps.splitlines():
        # Five columns without spaces, then the path, which may have some.
        path = "".join(line.split(maxsplit=5)[5:])
        # SciPy may have loaded a library of its own; the products here are NumPy's.
        if "openblas" in Path(path).name and "scipy.libs" not in path:
            return path
    return None


def _function(library: ctypes.CDLL, verb: str) -> Callable[..., Any] | None:
    for prefix in PREFIXES:
        for suffix in SUFFIXES:
            found = getattr(library, f"{prefix}_{verb}_num_threads{suffix}", None)
            if found is not None:
                return cast(Callable[..., Any], found)
    return None


def blas_threads() -> int | None:
    """How many threads OpenBLAS uses, None when NumPy uses another library."""
    library = _library()
    get = _function(library, "get") if library is not None else None
    return None if get is None else int(get())


def set_blas_threads(count: int) -> bool:
    """Set the number of threads; False when NumPy uses another library."""
    library = _library()
    set_threads = _function(library, "set") if library is not None else None
    if set_threads is None:
        return False
    set_threads(ctypes.c_int(count))
    return True
