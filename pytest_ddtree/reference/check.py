"""``--check``: can these command lines be served? Reads a JSON list of argument lists from stdin; serves nothing."""

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


def main() -> int:
    """Exit status 0, or 2 after printing ``[number of the first that cannot, why]`` as JSON."""
    for number, words in enumerate(json.load(sys.stdin)):
        why = refusal(words)
        if why is not None:
            print(json.dumps([number, why]))
            return EXIT_USAGE
    return 0


def refusal(argv: Sequence[str]) -> str | None:
    """Why a server would not start with these arguments; None where it would."""
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
            args = parse(argv)
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
