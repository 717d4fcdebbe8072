"""Standard-input programs: run as `__main__` with real descriptors 0, 1 and 2 and no channel to forge on."""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
from types import ModuleType
from typing import Final

from .describe import FILENAME, describe, remember_source
from .wire import pack, write_all

OUT_OF_MEMORY: Final = 86


def run_program(channel: int, request: int, source: str) -> int:
    """Returns the exit status. The channel carries one reply (the source compiles) and is closed."""
    remember_source(source, FILENAME)
    try:
        code = compile(source, FILENAME, "exec", dont_inherit=True)
    except MemoryError:
        write_all(channel, pack(("memory", request)))
        return 1
    except Exception as error:
        write_all(channel, pack(("raised", request, type(error).__name__, describe(error))))
        return 1
    write_all(channel, pack(("ready", request)))
    os.close(channel)
    module = ModuleType("__main__")
    sys.modules["__main__"] = module
    status = 0
    try:
        exec(code, module.__dict__)
    except MemoryError:
        status = OUT_OF_MEMORY
    except SystemExit as stop:
        status = _exit_status(stop.code)
    except BaseException as error:
        _complain(describe(error))
        status = 1
    return _finish(status)


def _exit_status(code: object) -> int:
    if code is None:
        return 0
    if type(code) is int:
        return code & 0xFF
    _complain(describe(SystemExit(code)))
    return 1


def _complain(text: str) -> None:
    with contextlib.suppress(BaseException):
        os.write(2, text.encode("utf-8", "replace"))


def _finish(status: int) -> int:
    """What the interpreter does at its end: exit functions, then what is still buffered."""
    with contextlib.suppress(BaseException):
        atexit._run_exitfuncs()
    try:
        sys.stdout.flush()
    except BaseException:
        return status or 1
    return status
