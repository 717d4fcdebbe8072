"""``--check``: can these command lines be served? Takes one as it is, or a JSON list of them from stdin; serves nothing."""

from __future__ import annotations

import contextlib
import io
import json
import sys
from collections.abc import Sequence

from .args import ArgumentError, parse
from .checkpoint import CheckpointError
from .faults import plant
from .faults.base import PlantError
from .launch import load

EXIT_USAGE = 2


def main(argv: Sequence[str] = ()) -> int:
    """Whether a server would start with these arguments: exit status 0, or 2 with why on standard error.

    Without arguments a JSON list of argument lists is read from standard input, where it is no terminal and not empty; what cannot be
    served is then ``[number of the first, why]`` as JSON on standard output.
    """
    text = "" if argv or sys.stdin is None or sys.stdin.isatty() else sys.stdin.read()
    if not text.strip():
        why = refusal(argv)
        if why is not None:
            print(f"error: {why}", file=sys.stderr)
        return 0 if why is None else EXIT_USAGE
    try:
        lists = _argument_lists(text)
    except ValueError as error:
        print(f"error: --check reads a JSON list of lists of arguments: {error}", file=sys.stderr)
        return EXIT_USAGE
    for number, words in enumerate(lists):
        why = refusal(words)
        if why is not None:
            print(json.dumps([number, why]))
            return EXIT_USAGE
    return 0


def _argument_lists(text: str) -> list[list[str]]:
    found = json.loads(text)
    if not isinstance(found, list):
        raise ValueError("this is no list")
    for words in found:
        if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
            raise ValueError(f"{json.dumps(words)[:80]} is no list of strings")
    return found


def refusal(argv: Sequence[str]) -> str | None:
    """Why a server would not start with these arguments; None where it would."""
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
            args = parse(argv)
            if args.check:
                raise ArgumentError("--check looks at arguments and serves nothing")
            if "list" in args.plant:
                raise ArgumentError("--plant list prints the faults and serves nothing")
            plant(args.plant)
            load(args)
    except (ArgumentError, PlantError, CheckpointError) as error:
        return str(error)
    except SystemExit:
        # argparse has printed its usage and then one line with the reason; --help ends here too.
        lines = said.getvalue().strip().splitlines()
        return lines[-1].partition("error: ")[2] or "these arguments print something and serve nothing"
    except Exception as error:  # Whatever a library says of a broken file; a server would end with it.
        return f"{type(error).__name__}: {error}"
    return None
