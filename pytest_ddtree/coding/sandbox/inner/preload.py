"""Modules the zygote imports before it forks, so that children need not."""

from __future__ import annotations

import builtins
import contextlib
import importlib
import importlib.util
from collections.abc import Iterable
from typing import Final, NoReturn

COMMON: Final = (
    "abc", "array", "ast", "bisect", "cmath", "collections", "collections.abc", "contextlib", "copy",
    "ctypes", "dataclasses", "datetime", "decimal", "enum", "fractions", "functools", "heapq", "io",
    "itertools", "json", "linecache", "math", "numbers", "operator", "os", "random", "re", "statistics",
    "string", "struct", "sys", "textwrap", "time", "traceback", "types", "typing", "unicodedata",
)  # fmt: skip
# Without Landlock no file can be opened after the fork, so everything a solution may ask for is loaded
# before.
WIDE: Final = (
    "asyncio", "base64", "binascii", "bz2", "calendar", "codecs", "colorsys", "concurrent.futures",
    "configparser", "contextvars", "copyreg", "csv", "difflib", "dis", "doctest", "encodings.ascii",
    "encodings.idna", "encodings.latin_1", "encodings.utf_16", "fileinput", "fnmatch", "getopt",
    "graphlib", "gzip", "hashlib", "hmac", "html", "html.parser", "inspect", "ipaddress", "keyword",
    "locale", "mmap", "resource", "logging", "lzma", "marshal", "opcode", "optparse", "pathlib", "pickle", "pprint",
    "queue", "quopri", "reprlib", "sched", "secrets", "select", "selectors", "shelve", "shlex",
    "shutil", "signal", "socket", "sqlite3", "stringprep", "subprocess", "symtable", "tempfile",
    "threading", "timeit", "token", "tokenize", "tomllib", "unittest", "unittest.mock", "urllib.parse",
    "uuid", "warnings", "weakref", "xml.etree.ElementTree", "zipfile", "zlib", "zoneinfo", "argparse",
)  # fmt: skip


def preload(names: Iterable[str]) -> None:
    """Imports what exists; an interpreter built without some module is fine."""
    for name in names:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)


def add_exits() -> None:
    """`exit` and `quit`, which programs call and which the `site` module would have put there."""

    def leave(code: object = None) -> NoReturn:
        raise SystemExit(code)

    vars(builtins).update(exit=leave, quit=leave)


def warm_import_caches() -> None:
    """Lets the import system list the library's folders while that is allowed; it keeps the lists."""
    importlib.util.find_spec("a_module_that_nobody_has")
