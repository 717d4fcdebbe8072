"""Function and class runs: load the solution once, then answer one request at a time."""

from __future__ import annotations

import sys
from collections import Counter, OrderedDict, defaultdict
from types import CoroutineType, ModuleType
from typing import Any, Final

from .codec import CodecError, NotPlainError, decode, encode
from .describe import FILENAME, TEST_FILENAME, describe, remember_source
from .wire import pack, read_frame, write_all

MODULE: Final = "solution"
_DICT_LIKE: Final = (Counter, OrderedDict, defaultdict)

Reply = tuple[object, ...]


class MissingError(Exception):
    """The solution does not define the name that is to be called."""


class Runner:
    """Holds the solution's module and, for class runs, the object under test."""

    def __init__(self, channel: int) -> None:
        self._channel = channel
        self._module = ModuleType(MODULE)
        self._object: Any = None

    def serve(self, kind: str, request: int, arguments: list[Any]) -> int:
        """Answers until the channel closes; returns the exit status."""
        while True:
            write_all(self._channel, pack(self._answer(kind, request, arguments)))
            try:
                kind, request, *arguments = read_frame(self._channel)
            except EOFError:
                return 0

    def _answer(self, kind: str, request: int, arguments: list[Any]) -> Reply:
        handler = getattr(self, f"_on_{kind}")
        try:
            reply: Reply = handler(*arguments)
        except MemoryError:
            reply = ("memory",)
        except MissingError as error:
            reply = ("missing", str(error))
        except BaseException as error:
            filename = TEST_FILENAME if kind == "asserts" else FILENAME
            reply = ("raised", type(error).__name__, describe(error, filename))
        return (reply[0], request, *reply[1:])

    def _on_load(self, source: str) -> Reply:
        sys.modules[MODULE] = self._module
        self._run(source, FILENAME)
        return ("ready",)

    def _on_call(self, entry_point: str, arguments: bytes, keywords: bytes) -> Reply:
        return _value(self._find(entry_point)(*decode(arguments), **decode(keywords)))

    def _on_new(self, entry_point: str, arguments: bytes, keywords: bytes) -> Reply:
        self._object = self._find(entry_point)(*decode(arguments), **decode(keywords))
        return ("ready",)

    def _on_method(self, name: str, arguments: bytes, keywords: bytes) -> Reply:
        return _value(getattr(self._object, name)(*decode(arguments), **decode(keywords)))

    def _on_asserts(self, source: str, entry_point: str) -> Reply:
        self._run(source, TEST_FILENAME)
        check = self._module.__dict__.get("check")
        if callable(check):
            check(self._find(entry_point))
        return ("passed",)

    def _run(self, source: str, filename: str) -> None:
        remember_source(source, filename)
        exec(compile(source, filename, "exec", dont_inherit=True), self._module.__dict__)

    def _find(self, entry_point: str) -> Any:
        """The module's name, or a method of that name of an argument-less `Solution` object."""
        namespace = self._module.__dict__
        if entry_point in namespace:
            return namespace[entry_point]
        wrapper = namespace.get("Solution")
        if isinstance(wrapper, type) and hasattr(wrapper, entry_point):
            return getattr(wrapper(), entry_point)
        raise MissingError(entry_point)


def _value(result: Any) -> Reply:
    if type(result) is CoroutineType:
        import asyncio

        result = asyncio.run(result)
    try:
        try:
            return ("value", encode(result))
        except NotPlainError:
            return ("value", encode(_plain(result)))
    except CodecError as error:
        return ("odd", str(error)[:500])


def _is_named_tuple(kind: type) -> bool:
    order = type.mro(kind)
    return len(order) > 1 and order[1] is tuple and hasattr(kind, "_fields")


def _plain(value: Any) -> Any:
    """Dict-like and tuple-like types of the library as the builtin types they are equal to."""
    kind = type(value)
    # Compared by identity: a metaclass may answer == with anything.
    if kind is dict or any(kind is known for known in _DICT_LIKE):
        return {_plain(key): _plain(item) for key, item in dict.items(value)}
    if kind is tuple or _is_named_tuple(kind):
        return tuple(_plain(item) for item in tuple.__iter__(value))
    if kind is list or kind is set or kind is frozenset:
        return kind(_plain(item) for item in value)
    return value
