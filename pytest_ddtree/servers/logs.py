"""A server's log: its end, the line that names the root cause, the kind of a failed start, and how far the start is."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from pytest_ddtree.servers.causes import CAUSES, Cause

TAIL_LINES: Final = 40
_WIDEST = 400
_LONGEST = 2000
"""Of a longer line only the beginning is searched: some logs hold a whole model config in one."""
_PROGRESS_BAR = re.compile(r"\d+%\|.*\|\s*\d+/\d+|\d+% Completed \|")
_COLOUR = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_UNPRINTABLE = {
    code: "\N{REPLACEMENT CHARACTER}" for code in (*range(32), *range(127, 160)) if chr(code) != "\t"
}
"""A log is quoted on terminals and in reports; what a broken server wrote must not steer them."""


def read(path: Path | None, limit: int = 8 << 20) -> str:
    """The log as text without colours; of a huge one the first and last halves of `limit` bytes."""
    if path is None:
        return ""
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            if size <= limit:
                data = file.read()
            else:
                data = file.read(limit // 2)
                file.seek(size - limit // 2)
                data += b"\n" + file.read()
    except OSError:
        return ""
    text = data.decode(errors="replace")
    return _COLOUR.sub("", text) if "\x1b[" in text else text


def body(path: Path | None) -> str:
    """The log without the line that the pool itself put first: what the server said, and nothing that it was told."""
    text = read(path)
    return text.partition("\n")[2] if text.startswith("$ ") else text


def tail(text: str, lines: int = TAIL_LINES) -> str:
    """The last lines that say something: of progress bars only the last state, overlong lines cut."""
    kept: list[str] = []
    for raw in text.split("\n"):
        line = raw.rstrip("\r").rsplit("\r", 1)[-1].rstrip()
        if not line:
            continue
        if kept and _PROGRESS_BAR.search(line) and _PROGRESS_BAR.search(kept[-1]):
            kept.pop()
        kept.append(_printable(line if len(line) <= _WIDEST else line[: _WIDEST - 1] + "…"))
    return "\n".join(kept[-lines:])


def _printable(line: str) -> str:
    return line.translate(_UNPRINTABLE)


_SYMPTOM = re.compile(
    r"scheduler died during initialization|Scheduler hit an exception|Triggering SIGQUIT|kill_process_tree|crashed with exit code"
    r"|It usually means one child failed|EOFError|Initialization failed",
)
_EXCEPTION = re.compile(
    r"^(?:\[[^\]]*\]\s*)?(?:[\w.]+\.)?[A-Z]\w*(?:Error|Exception|Interrupt|Failure)\b:?.*$"
)


_HARMLESS = re.compile(
    r"^\$ |Proceeding without|Ignore import error|\) disabled: "
    r"|\bserver_args=|UserWarning|DeprecationWarning|WARNING|\] WARN|is still supported"
)
"""Lines that speak of errors and are none: our own head line, optional parts that a build goes without, the echo of its arguments."""

_MILESTONE = re.compile(
    r"Load weight end|KV Cache is allocated|Memory pool end|[Cc]apture [\w ]*(?:cuda|CUDA) graph end|draft runner ready"
    r"|Application startup complete|Uvicorn running on|\"(?:GET|POST) /\S* HTTP|Prefill batch|Decode batch|fired up and ready to roll"
)


def classify(text: str) -> Cause | None:
    """The class of a failed start, by the earliest line that any class knows; a consequence later in the log does not count.

    What the server has survived is no cause: the search begins after the last line that shows progress. Only when nothing but
    consequences are found there (one rank failed while another went on) it begins at the start of the log.
    """
    return _diagnose(text)[0]


def root_cause(text: str) -> str | None:
    """The line that names the cause: of a known class, else the first exception that is no consequence, else the last
    line, unless it tells of ordinary work: who is killed from outside says nothing."""
    line = _diagnose(text)[1]
    return line and _printable(line)


def _diagnose(text: str) -> tuple[Cause | None, str | None]:
    lines = [line[:_LONGEST].strip() for line in text.split("\n")]
    lines = [line for line in lines if line and not _HARMLESS.search(line)]
    last = _after_progress(lines)
    parts = [last]
    if len(last) < len(lines) and any(_SYMPTOM.search(line) for line in last):
        parts.append(lines)
    for part in parts:
        for line in part:
            for cause in CAUSES:
                if cause.pattern.search(line):
                    return cause, line[:_WIDEST]
        for line in part:
            if _EXCEPTION.match(line) and not _SYMPTOM.search(line):
                return None, line[:_WIDEST]
    # A line of a server that does its work is no cause of its end.
    return None, last[-1][:_WIDEST] if last else None


def _after_progress(lines: list[str]) -> list[str]:
    for index in range(len(lines) - 1, -1, -1):
        if _MILESTONE.search(lines[index]):
            return lines[index + 1 :]
    return lines


_PHASES: Final[Sequence[tuple[re.Pattern[str], str]]] = (
    (re.compile(r"server_args=|Init torch distributed begin"), "starting processes"),
    (re.compile(r"Load weight begin|loading (target|weights|checkpoint)", re.IGNORECASE), "loading weights"),
    (re.compile(r"Multi-thread loading shards:\s+(?P<detail>\d+)%"), "loading weights"),
    (re.compile(r"Loading safetensors checkpoint shards:\s+(?P<detail>\d+)%"), "loading weights"),
    (re.compile(r"KV Cache is allocated"), "allocating the KV cache"),
    (re.compile(r"Capture [\w ]*cuda graph begin", re.IGNORECASE), "capturing CUDA graphs"),
    (re.compile(r"Capturing (?:batches|num tokens)[^\n]*?(?P<detail>\d+)%\|"), "capturing CUDA graphs"),
    (re.compile(r"Initialized DFLASH draft runner|Initialized DDTree", re.IGNORECASE), "drafter ready"),
    (re.compile(r"Uvicorn running on|Application startup complete"), "warming up"),
    (re.compile(r"fired up and ready to roll"), "ready"),
)


def phase(text: str) -> str | None:
    """How far a start is, from the last line that shows it: `loading weights 62 %`."""
    for line in reversed(text[-65536:].splitlines()):
        for pattern, name in _PHASES:
            if match := pattern.search(line):
                detail = match.groupdict().get("detail")
                return f"{name} {detail} %" if detail else name
    return None
