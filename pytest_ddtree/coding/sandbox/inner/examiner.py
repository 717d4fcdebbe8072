"""Test code that calls a candidate, with the candidate elsewhere.

This child holds the test and never the solution: each call goes to the checker, which has the solution's own
child answer it. What comes back are plain values, so nothing of the solution can run here.
"""

from __future__ import annotations

import builtins
from typing import Any, Final

from .codec import CodecError, decode, encode
from .describe import TEST_FILENAME, describe, remember_source
from .wire import pack, read_frame, write_all

_PRELUDE: Final = "<prompt>"


class SolutionError(Exception):
    """The solution raised, or returned something that is no plain value."""


class UncrossableError(Exception):
    """The test passes something that cannot be sent to a solution."""


class _CheckerGone(BaseException):
    """Nobody waits for this examination any more."""


class Candidate:
    """Stands for the solution's function."""

    def __init__(self, channel: int) -> None:
        self._channel = channel
        self._asked = 0

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        self._asked += 1
        try:
            question = pack(("ask", self._asked, encode(arguments), encode(keywords)))
        except CodecError as error:
            raise UncrossableError(str(error)) from error
        try:
            write_all(self._channel, question)
            kind, *rest = read_frame(self._channel)
        except (EOFError, BrokenPipeError):
            raise _CheckerGone from None
        if kind == "value":
            return decode(rest[0])
        raise _raised(*rest)


def _raised(name: str, text: str) -> Exception:
    """Tests that expect a ValueError get one; types of the solution's own become SolutionError."""
    kind = getattr(builtins, name, None)
    if isinstance(kind, type) and issubclass(kind, Exception):
        try:
            return kind(text)
        except TypeError:
            pass
    return SolutionError(f"{name}: {text}")


def examine(channel: int, request: int, prelude: str, test: str, entry_point: str) -> int:
    """Runs `test`, and its `check(candidate)` where it defines one; returns the exit status.

    Names that tests borrow from the prompt come from `prelude`.
    """
    candidate = Candidate(channel)
    namespace: dict[str, Any] = {"__name__": "examination"}
    try:
        for filename, source in ((_PRELUDE, prelude), (TEST_FILENAME, test)):
            remember_source(source, filename)
            code = compile(source, filename, "exec", dont_inherit=True)
            exec(code, namespace)
            namespace[entry_point] = candidate
            namespace.setdefault("candidate", candidate)
        check = namespace.get("check")
        if callable(check):
            check(candidate)
        reply: tuple[object, ...] = ("passed", request)
    except _CheckerGone:
        return 1
    except UncrossableError as error:
        reply = ("uncrossable", request, str(error))
    except MemoryError:
        reply = ("memory", request)
    except BaseException as error:
        reply = ("failed", request, type(error).__name__, describe(error, TEST_FILENAME))
    write_all(channel, pack(reply))
    return 0
