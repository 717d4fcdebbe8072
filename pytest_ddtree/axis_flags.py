"""Whether the build takes what `--ddtree-axis` stands for, asked before a server starts: its own start would say it minutes later."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Collection, Iterable

from pytest_ddtree.grid import Axis

ANSWER_S = 60.0
"""Longest time for the embedded server to read a command line; it loads nothing for that."""


def refused_axes(axes: Iterable[Axis], *, embedded: bool, flags: Collection[str]) -> list[str]:
    """One line for each axis that the server would not start with.

    The embedded server reads the arguments itself. Of another build only the names of its `flags` are known (none: nothing is): a wrong
    value is left to the server.
    """
    asked = sorted((axis for axis in axes if axis.arguments), key=lambda axis: axis.id)
    if embedded:
        found = _read_by_the_embedded(asked)
    else:
        found = [
            (axis, f"this build has no {flag}; it has: {_alike(flag, flags)}")
            for axis in asked
            for flag in axis.arguments[:1]
            if flags and flag not in flags
        ]
    return [f"--ddtree-axis {axis.name}={axis.value}: {why}" for axis, why in found]


def _read_by_the_embedded(axes: Iterable[Axis]) -> list[tuple[Axis, str]]:
    # `--plant list` makes it print a list and end once it has read its arguments.
    command = [sys.executable, "-m", "pytest_ddtree.reference"]
    reading = [
        (
            axis,
            subprocess.Popen(
                [*command, *axis.arguments, "--plant", "list"],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
            ),
        )
        for axis in axes
    ]
    found = []
    for axis, process in reading:
        try:
            _, said = process.communicate(timeout=ANSWER_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            continue
        if process.returncode:
            last = said.strip().splitlines()[-1] if said.strip() else f"it ends with {process.returncode}"
            found.append(
                (axis, f"the embedded server does not take it: {last.partition('error: ')[2] or last}")
            )
    return found


def _alike(flag: str, flags: Collection[str]) -> str:
    words = {word for word in flag.strip("-").split("-") if len(word) > 2}
    found = sorted(one for one in flags if words & set(one.strip("-").split("-")))
    return ", ".join(found) or "nothing of a similar name"
