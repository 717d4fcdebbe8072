"""What the scripts beside this file ask of their command lines, and how they leave: with one line, and with no server behind them."""

from __future__ import annotations

import argparse
import json
import re
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any


def checkpoint(text: str) -> Path:
    """A folder with a model's `config.json`."""
    path = Path(text)
    if not (path / "config.json").is_file():
        raise argparse.ArgumentTypeError(f"{text}: there is no config.json, so it is no checkpoint")
    return path


def build(text: str) -> Path:
    """A folder that holds the package `sglang`."""
    path = Path(text)
    if not (path / "sglang").is_dir():
        raise argparse.ArgumentTypeError(f"{text}: there is no folder sglang in it")
    return path


def file(text: str) -> Path:
    """A file that is there."""
    if not Path(text).is_file():
        raise argparse.ArgumentTypeError(f"{text}: there is no such file")
    return Path(text)


def pair(text: str) -> tuple[str, str]:
    """NAME=VALUE."""
    name, sign, value = text.partition("=")
    if not (name and sign and value):
        raise argparse.ArgumentTypeError(f"{text!r} has not the form NAME=VALUE")
    return name, value


def faulty(text: str) -> tuple[str, Path]:
    """NAME=FOLDER of a build."""
    name, folder = pair(text)
    return name, build(folder)


def cell(text: str) -> str:
    """CONTEXT:CONCURRENCY:OUTPUT, whole numbers above 0."""
    if not re.fullmatch(r"[1-9]\d*:[1-9]\d*:[1-9]\d*", text):
        raise argparse.ArgumentTypeError(
            f"{text!r} has not the form CONTEXT:CONCURRENCY:OUTPUT, such as 1024:8:256"
        )
    return text


def pattern(text: str) -> re.Pattern[str]:
    """A regular expression."""
    try:
        return re.compile(text)
    except re.error as error:
        raise argparse.ArgumentTypeError(f"{text!r} is no regular expression: {error}") from None


def signal_named(text: str) -> signal.Signals:
    """A signal by its name."""
    try:
        return signal.Signals[text]
    except KeyError:
        raise argparse.ArgumentTypeError(
            f"{text!r} is no signal; SIGKILL, SIGINT, SIGTERM, SIGHUP are"
        ) from None


def plan(text: str) -> dict[str, Any]:
    """A plan for `side_by_side.py`: every name that a run uses is there, and each run has something to do."""
    try:
        found = json.loads(file(text).read_text("utf-8"))
        servers, runs = found["servers"], found["runs"]
        for name, server in servers.items():
            if not server["argv"]:
                raise ValueError(f"server {name} has an empty argv")
        for run in runs:
            used = [run[key] for key in ("server", "baseline") if run.get(key)] + run.get("needs", [])
            unknown = sorted(set(used) - set(servers)) + sorted(
                set(run.get("after", ())) - {one["name"] for one in runs}
            )
            if unknown:
                raise ValueError(
                    f"run {run['name']} names {', '.join(unknown)}, which the plan does not have"
                )
            if "argv" not in run and not ("pytest" in run and run.get("server")):
                raise ValueError(f"run {run['name']} has neither argv nor pytest with a server")
    except KeyError as error:
        raise argparse.ArgumentTypeError(f"{text}: {error} is missing") from None
    except (ValueError, TypeError, AttributeError) as error:
        raise argparse.ArgumentTypeError(f"{text}: {error}") from None
    return dict(found)


def leave(main: Callable[[], int]) -> None:
    """Run a script to its end. SIGTERM and SIGHUP unwind it as Ctrl-C does, so that it stops what it started."""

    def unwind(number: int, frame: FrameType | None) -> None:
        del frame
        # A second one must not cut the stopping short.
        for other in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(other, signal.SIG_IGN)
        raise SystemExit(128 + number)

    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, unwind)
    with suppress(KeyboardInterrupt):
        sys.exit(main())
    print("interrupted; what was found so far is kept", file=sys.stderr)
    sys.exit(130)
