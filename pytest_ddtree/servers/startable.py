"""What can be seen to be wrong with a start before it is tried: launchers, interpreters, arguments that the server does not take."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from pytest_ddtree.servers.argv import environment, package_root
from pytest_ddtree.servers.errors import ConfigNotSupported, SetupRefused
from pytest_ddtree.servers.launcher import prepare
from pytest_ddtree.servers.settings import ServerSettings

_S = 60.0
"""Importing on a cold network disk takes long; what takes longer is left to the start, which has its own deadline."""
_FIND = "import importlib.util, sys; sys.exit(0 if importlib.util.find_spec('sglang') else 3)"
_NOT_FOUND = 3


def check_programs(settings: ServerSettings) -> None:
    """Refuse launchers that nobody could stop, and programs that this host does not have.

    Raises ConfigNotSupported or SetupRefused.
    """
    option = "--ddtree-node-prefix" if settings.node_prefixes else "--ddtree-launch-prefix"
    prefixes = settings.node_prefixes or ((settings.launch_prefix,) if settings.launch_prefix else ())
    for prefix in prefixes:
        try:
            prepare(
                prefix, "name", stop_command=settings.stop_command, env={}, grace_s=settings.stop_timeout_s
            )
        except ConfigNotSupported as error:
            what = error.what.replace("--ddtree-launch-prefix", option)
            raise ConfigNotSupported(what, why=error.why, hint=error.hint) from None
        if shutil.which(prefix[0]) is None:
            raise SetupRefused(
                f"{option} begins with {prefix[0]!r}, and there is no such program that can be run on this host",
                hint="install it, or give its path",
            )
    if prefixes:
        return  # Another file system or environment may be behind it: the build is probed through it.
    if settings.python is not None and shutil.which(settings.python) is None:
        raise SetupRefused(
            f"--ddtree-python {settings.python}: there is no program that can be run",
            hint="give the path of a Python interpreter, such as /path/venv/bin/python",
        )
    if settings.sglang_src is not None:
        _check_checkout(settings.sglang_src, settings.kind)
    if settings.kind == "sglang":
        _check_package(settings)


def _check_checkout(source: Path, kind: str) -> None:
    """A folder without the package would leave the installed engine in its place, and that would be measured under its name."""
    if kind == "sglang" and not (package_root(source) / "sglang").is_dir():
        raise SetupRefused(
            f"--ddtree-sglang-src {source}: there is no package `sglang` in it, nor in its folder `python`",
            hint="give the root of an SGLang checkout",
        )
    if kind == "reference" and not (source / "pytest_ddtree").is_dir():
        raise SetupRefused(
            f"the checkout {source} has no package `pytest_ddtree`, so it is no build of the embedded server",
            hint="add --ddtree-server sglang if it is one of SGLang",
        )


def _check_package(settings: ServerSettings) -> None:
    python = settings.python or sys.executable
    done = _run([python, "-c", _FIND], settings)
    if done is None or done.returncode == 0:
        return
    if done.returncode == _NOT_FOUND:
        raise SetupRefused(
            f"{python} has no SGLang",
            why="the package `sglang` is not to be found there",
            hint="name the interpreter that has it with --ddtree-python, or a checkout with --ddtree-sglang-src",
        )
    raise SetupRefused(
        f"--ddtree-python {python} does not run as a Python interpreter",
        why=_last(done.stderr) or f"exit code {done.returncode}",
    )


def check_embedded(settings: ServerSettings, named: Sequence[tuple[str, Sequence[str]]]) -> None:
    """Let the embedded server look at command lines: its arguments, its planted faults, the checkpoints. Nothing is served.

    `named` are pairs of what a server is called and its arguments. Raises SetupRefused with the server's own words.
    """
    safe = [settings.python or sys.executable, "-P", "-m", "pytest_ddtree.reference", "--check"]
    done = _run(safe, settings, json.dumps([list(words) for _, words in named]))
    if done is None or done.returncode == 0:
        return
    try:
        number, why = json.loads(done.stdout.strip().splitlines()[-1])
        name = named[number][0]
    except (ValueError, IndexError, TypeError):
        raise SetupRefused(
            f"{safe[0]} does not run the embedded server",
            why=_last(done.stderr) or f"exit code {done.returncode}",
            hint="give a Python interpreter that has its libraries with --ddtree-python, or leave that option out",
        ) from None
    raise SetupRefused(
        f"the embedded server does not take what the options say for {name}",
        why=why,
        hint="mend --ddtree-server-args, --ddtree-spec-args, --ddtree-baseline-args, --ddtree-model or --ddtree-draft-model; "
        "`python -m pytest_ddtree.reference --help` lists its arguments, and `--plant list` its faults",
    )


def _run(
    argv: Sequence[str], settings: ServerSettings, text: str = ""
) -> subprocess.CompletedProcess[str] | None:
    env = {**os.environ, **environment(settings), **settings.env}
    try:
        return subprocess.run(
            argv,
            input=text,
            env=env,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return None
    except OSError as error:
        raise SetupRefused(f"{argv[0]} cannot be run", why=str(error)) from error


def _last(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1].strip()[:400] if lines else ""
