"""The command `pytest-ddtree`: what one wants of the plugin without running tests."""

from __future__ import annotations

import io
import os
import select
import signal
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import TextIO

COMMANDS: dict[str, tuple[str, str]] = {
    "doctor": (
        "pytest_ddtree.servers.doctor",
        "say what is there and what is missing: interpreter, SGLang, dialect, GPU, port, sandbox",
    ),
    "reap": ("pytest_ddtree.servers.reap", "remove servers that an earlier run provably left behind"),
    "show": ("pytest_ddtree.report.show_cli", "print the tables of a stored run"),
    "compare": ("pytest_ddtree.report.compare_cli", "compare two stored runs, or the builds within one"),
    "export": ("pytest_ddtree.report.export_cli", "write a stored run as CSV or JSON"),
    "measure": ("pytest_ddtree.workload.measure_cli", "measure one cell against any URL"),
}
"""Command -> (module with `run(argv) -> exit code`, what it does)."""


def usage() -> str:
    """The text of `--help`."""
    rows = [f"  {name:<10} {about}" for name, (_, about) in COMMANDS.items()]
    return "\n".join(
        [
            "usage: pytest-ddtree COMMAND [OPTIONS]",
            "",
            *rows,
            "",
            "Each command takes --help. Tests are run with pytest itself.",
        ]
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; the exit code is 0 when it did what was asked, 2 for a wrong call and where standard output cannot be written,
    141 when nobody reads it."""
    words = list(sys.argv[1:] if argv is None else argv)
    command = " ".join(["pytest-ddtree", *(word for word in words[:1] if word in COMMANDS)])
    if sys.stdout is None:
        _say(f"{command}: standard output is closed")
        return 2
    try:
        try:
            return _run(words)
        finally:
            # Written here and not at exit, where nobody could say any more that it failed.
            sys.stdout.flush()
    except OSError as error:
        if isinstance(error, BrokenPipeError) and _nobody_reads():
            return 128 + signal.SIGPIPE
        refused = _refused(sys.stdout)
        if refused is not None:
            _say(f"{command}: standard output cannot be written: {refused.strerror}")
        elif _refused(sys.stderr) is None:
            raise
        return 2


def _run(words: Sequence[str]) -> int:
    if words and words[0] in ("-h", "--help"):
        print(usage())
        return 0
    if words and words[0] == "--version":
        from pytest_ddtree import __version__

        print(f"pytest-ddtree {__version__}")
        return 0
    if not words or words[0] not in COMMANDS:
        said = f"pytest-ddtree: unknown command {words[0]!r}\n" if words else ""
        print(f"{said}{usage()}", file=sys.stderr)
        return 2
    module, _ = COMMANDS[words[0]]
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A terminal of few letters shows a sign that it has none for as `?`.
        sys.stdout.reconfigure(errors="replace")
    code: int = import_module(module).run(words[1:])
    return code


def _say(text: str) -> None:
    """A line on standard error, where that can be written."""
    try:
        print(text, file=sys.stderr, flush=True)
    except OSError:
        _to_nowhere(sys.stderr)


def _refused(stream: TextIO | None) -> OSError | None:
    """What a stream answers to a write, where it takes none: then nothing more is written to it, at exit either."""
    if stream is None:
        return None
    try:
        stream.flush()
        # Without a buffer there is nothing left to flush.
        os.write(stream.fileno(), b"\n")
    except OSError as error:
        _to_nowhere(stream)
        return error
    return None


def _nobody_reads() -> bool:
    """Whether standard output is a pipe that its reader closed (`| head -1`); then nothing more is written to it, at exit either."""
    output = sys.stdout.fileno()
    poll = select.poll()
    poll.register(output, 0)
    if not any(event & select.POLLERR for _, event in poll.poll(0)):
        return False
    _to_nowhere(sys.stdout)
    return True


def _to_nowhere(stream: TextIO) -> None:
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)
