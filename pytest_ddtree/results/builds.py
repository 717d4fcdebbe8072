"""Naming the builds of a comparison: `patched=/src/sglang`, `base=git:main`, `base=/venv/bin/python`, `slow=args:--flag 1`. Pure."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Kind = Literal["python", "source", "git", "args"]


class BuildError(ValueError):
    """A build that cannot be had; the text quotes what was written and says what is allowed."""


@dataclass(frozen=True, slots=True)
class BuildSpec:
    """One build: an interpreter that has the engine, a checkout, a revision of the checkout, or further server arguments."""

    name: str
    kind: Kind
    where: str

    @property
    def arguments(self) -> tuple[str, ...]:
        """The further server arguments of a build of kind `args`."""
        return tuple(shlex.split(self.where)) if self.kind == "args" else ()


_NAME = re.compile(r"[A-Za-z0-9][\w.-]{0,39}")


def parse_build(text: str) -> BuildSpec:
    """One build from `NAME=WHERE`.

    Raises:
        BuildError: no name, or a place where nothing is.
    """
    name, sign, where = text.partition("=")
    name, where = name.strip(), where.strip()
    if not sign or not where:
        raise BuildError(
            f"{text!r}: a build has the form NAME=WHERE, WHERE a checkout, an interpreter, git:REVISION or args:ARGUMENTS"
        )
    if not _NAME.fullmatch(name):
        raise BuildError(f"{text!r}: {name!r} is no name; letters, digits, dots and dashes")
    if where.startswith("git:"):
        if not where[4:] or where[4:].startswith("-"):
            raise BuildError(f"{text!r}: git: takes a revision")
        return BuildSpec(name, "git", where[4:])
    if where.startswith("args:"):
        try:
            shlex.split(where[5:])
        except ValueError as error:
            raise BuildError(f"{text!r}: cannot be split into arguments: {error}") from None
        return BuildSpec(name, "args", where[5:].strip())
    path = Path(where).expanduser()
    if path.is_dir():
        return BuildSpec(name, "source", str(path))
    if path.is_file() and os.access(path, os.X_OK):
        return BuildSpec(name, "python", str(path))
    raise BuildError(f"{text!r}: there is neither a checkout nor an interpreter at {path}")


def parse_builds(texts: Sequence[str], checkout: Path | None) -> tuple[BuildSpec, ...]:
    """The builds of a session; the first one is what the others are compared with, or the one that is called `base`.

    `checkout` is where revisions are taken from.

    Raises:
        BuildError: fewer than two, a name twice, or a revision without a checkout to take it from.
    """
    builds = [parse_build(text) for text in texts]
    names = [build.name for build in builds]
    if len(builds) < 2:
        raise BuildError(f"one build ({', '.join(names)}) is no comparison; give --ddtree-build twice")
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise BuildError(f"the build {twice} is there twice")
    if checkout is None and any(build.kind == "git" for build in builds):
        raise BuildError(
            "git:REVISION takes the revision from the checkout of --ddtree-sglang-src DIR, which is not given"
        )
    return tuple(sorted(builds, key=lambda build: build.name != "base"))


def check_revisions(builds: Sequence[BuildSpec], checkout: Path | None) -> None:
    """Refuse a revision that the checkout does not have.

    Raises:
        BuildError: naming it, with what git says.
    """
    for build in builds:
        if build.kind != "git":
            continue
        words = ["git", "-C", str(checkout), "rev-parse", "--verify", "--quiet", f"{build.where}^{{commit}}"]
        done = subprocess.run(words, capture_output=True, text=True, errors="replace", check=False)
        if done.returncode != 0:
            said = done.stderr.strip() or "no such revision"
            raise BuildError(f"{build.name}=git:{build.where}: {said} in the checkout {checkout}")
