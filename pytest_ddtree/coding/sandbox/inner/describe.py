"""An exception of a solution as text: its own lines only, bounded in length."""

from __future__ import annotations

import linecache
import traceback
from types import TracebackType
from typing import Final

FILENAME: Final = "<solution>"
TEST_FILENAME: Final = "<test>"
_MOST_FRAMES: Final = 12
_HEAD_FRAMES: Final = 3
_MOST_CHARACTERS: Final = 4000
_CAUSE, _CONTEXT, _TRACEBACK = (
    vars(BaseException)[name] for name in ("__cause__", "__context__", "__traceback__")
)
_LEADING: Final = frozenset({"__cause__", "__context__", "__suppress_context__", "__getattribute__"})
"""With one of these a class decides what the standard writer takes for the cause."""


def remember_source(source: str, filename: str) -> None:
    """Lets tracebacks quote the lines of `source`, which is in no file."""
    linecache.cache[filename] = (len(source), None, source.splitlines(keepends=True), filename)


def describe(error: BaseException, filename: str = FILENAME) -> str:
    """The traceback of `error` through the lines of `filename`, most recent call last.

    Writing an exception as text runs methods of the solution, so whatever they raise is swallowed.
    """
    try:
        text = "".join([*_calls(_TRACEBACK.__get__(error), filename), *_last_lines(error)]).rstrip()
    except BaseException:
        text = type.__repr__(type(error))
    if len(text) > _MOST_CHARACTERS:
        half = _MOST_CHARACTERS // 2
        text = f"{text[:half]}\n...\n{text[-half:]}"
    return text


def _last_lines(error: BaseException) -> list[str]:
    # Not shown, and yet looked at again and again: a long chain took all of a run's time. Not by assignment, which a solution's
    # class may refuse (a frozen dataclass does) or make something else of.
    for link in (_CAUSE, _CONTEXT):
        link.__set__(error, None)
    try:
        return _plainly(error) if _leads_on(error) else traceback.format_exception_only(type(error), error)
    except BaseException:
        return _plainly(error)


def _leads_on(error: BaseException) -> bool:
    """Whether the standard writer would go on to other exceptions: to the members of a group, or to what a class of the solution
    gives out as the cause, which may have no end."""
    if isinstance(error, BaseExceptionGroup):
        return True
    for kind in type.mro(type(error)):
        if kind is BaseException:
            break
        if not _LEADING.isdisjoint(vars(kind)):
            return True
    return False


def _plainly(error: BaseException) -> list[str]:
    """Type, text and notes of an exception without any help of its class but `__str__`."""
    kind = type(error)
    name = type.__repr__(kind).removeprefix("<class '").removesuffix("'>").removeprefix("__main__.")
    try:
        said = str(error)
    except BaseException:
        said = "<exception str() failed>"
    try:
        noted = getattr(error, "__notes__", ())
        notes = [f"\n{note}" for note in noted] if isinstance(noted, (list, tuple)) else []
    except BaseException:
        notes = []
    return [f"{name}: {said}" if said else name, *notes]


def _calls(link: TracebackType | None, filename: str) -> list[str]:
    places = []
    while link is not None:
        code = link.tb_frame.f_code
        if code.co_filename == filename:
            places.append((code.co_name, link.tb_lineno))
        link = link.tb_next
    tail = _MOST_FRAMES - _HEAD_FRAMES
    hidden = len(places) - _MOST_FRAMES
    kept = places if hidden <= 0 else places[:_HEAD_FRAMES] + places[-tail:]
    lines = traceback.format_list(
        [
            traceback.FrameSummary(filename, line, name, line=linecache.getline(filename, line).strip())
            for name, line in kept
        ]
    )
    if hidden > 0:
        lines.insert(_HEAD_FRAMES, f"  ... {hidden} more calls ...\n")
    return lines
