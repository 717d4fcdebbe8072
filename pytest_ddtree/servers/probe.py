"""Asking a build what it takes, before any server is started: its `--help`, its version, the variables its sources name."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pytest_ddtree.dialects.build import ENV_KNOBS, Build, flags_of_help
from pytest_ddtree.servers import logs, source
from pytest_ddtree.servers.argv import package_root
from pytest_ddtree.servers.errors import PoolClosed, SetupRefused, StartFailed
from pytest_ddtree.servers.handle import describe_exit
from pytest_ddtree.servers.launcher import prepare
from pytest_ddtree.servers.processes import write_head
from pytest_ddtree.servers.settings import ServerSettings
from pytest_ddtree.servers.supervise import Supervisor

PROBE_S = 300.0
"""SGLang imports torch before it prints its help; on a cold network disk that takes minutes."""

HELP = ("-m", "sglang.launch_server", "--help")

# Runs in the build's interpreter, so it must not need anything of ours. Finding the package does not import it.
_LOCATE = """
import importlib.metadata, importlib.util, json, os, sys
spec = importlib.util.find_spec("sglang")
where = list(spec.submodule_search_locations or []) if spec else []
try:
    version = importlib.metadata.version("sglang")
except importlib.metadata.PackageNotFoundError:
    version = None
names = set(sys.argv[1].split(","))
found = set()
for top in where:
    for folder, _, files in os.walk(top):
        for name in files:
            if name.endswith(".py") and ("environ" in name or "dflash" in name or "ddtree" in name or "spec" in folder):
                try:
                    text = open(os.path.join(folder, name), errors="replace").read()
                except OSError:
                    continue
                found |= {word for word in names if word in text}
print("DDTREE-PROBE " + json.dumps({"where": where, "version": version, "env": sorted(found)}))
"""


@dataclass(frozen=True, slots=True)
class Probed:
    """A build and where its sources are."""

    build: Build
    source: source.SourceState | None


@dataclass(frozen=True, slots=True)
class _Answered:
    """What a build said before, and of which files."""

    package: Path
    stamp: str
    build: Build
    checkout: Path


_ANSWERED: dict[tuple[object, ...], _Answered] = {}


def probe(
    settings: ServerSettings,
    supervisor: Supervisor,
    env: Mapping[str, str],
    progress: Callable[[str], None] = lambda text: None,
) -> Probed:
    """Run the build's interpreter twice: to find its package, and for its help.

    A build whose files have not changed since it answered in this process is not asked again: builds that take turns would wait
    for its imports at every stay. Raises SetupRefused when it has no SGLang, StartFailed when that does not answer, PoolClosed.
    """
    who = _who(settings, env)
    known = _ANSWERED.get(who)
    if known is not None and source.stamp(known.package) == known.stamp:
        now = source.state(known.checkout)
        return Probed(replace(known.build, revision=now.label if now.revision else None), now)
    # Real builds import for a quarter of a minute, which looks like a session that hangs.
    progress(f"asking the build what it takes: python {' '.join(HELP)}")

    def ask(name: str, *words: str) -> tuple[int, str]:
        launcher = prepare(
            settings.launch_prefix,
            f"ddtree-{supervisor.run_id}-{name}",
            stop_command=settings.stop_command,
            env=env,
            grace_s=2.0,
        )
        python = settings.python or ("python3" if launcher.foreign else sys.executable)
        return _run(
            settings, supervisor, name, [*launcher.prefix, python, *words], env, launcher.stop_commands
        )

    _, located = ask("probe-package", "-c", _LOCATE, ",".join(ENV_KNOBS))
    found = _parse(located)
    if not found.get("where"):
        raise SetupRefused(
            f"{settings.python or sys.executable} has no SGLang",
            why=logs.root_cause(located)
            if "Error" in located
            else "the package `sglang` is not to be found there",
            hint="name the interpreter that has it with --ddtree-python, or a checkout with --ddtree-sglang-src",
            log_tail=logs.tail(located, 20) if "Error" in located else "",
        )
    _refuse_another_package(settings, Path(found["where"][0]))
    code, text = ask("probe-help", *HELP)
    flags = flags_of_help(text)
    if "--model-path" not in flags:
        cause = logs.classify(text)
        raise StartFailed(
            f"this SGLang does not start: `python {' '.join(HELP)}` lists no flags ({describe_exit(code)})",
            why=logs.root_cause(text) or "it printed nothing",
            hint=cause.hint if cause else "try that command by hand",
            log_path=settings.run_dir / "logs" / "probe-help.log",
            log_tail=logs.tail(text),
        )
    where = settings.sglang_src or (
        Path(found["where"][0]) if not settings.launch_prefix and Path(found["where"][0]).exists() else None
    )
    state = source.state(where) if where is not None else None
    build = Build(
        flags,
        frozenset(found.get("env", ())),
        found.get("version"),
        state.label if state and state.revision else None,
    )
    if where is not None and not settings.launch_prefix:
        package = Path(found["where"][0])
        _ANSWERED[who] = _Answered(package, source.stamp(package), build, where)
    return Probed(build, state)


def _refuse_another_package(settings: ServerSettings, found: Path) -> None:
    """An interpreter that does not follow PYTHONPATH would run, and be measured under the checkout's name. Raises SetupRefused."""
    if settings.sglang_src is None or settings.launch_prefix or settings.node_prefixes:
        return  # Behind a launcher the same folder may have another path.
    meant = package_root(settings.sglang_src) / "sglang"
    if not (found.exists() and meant.exists() and found.samefile(meant)):
        raise SetupRefused(
            f"--ddtree-sglang-src {settings.sglang_src} is not what would run: {settings.python or sys.executable} finds the package "
            f"`sglang` in {found}",
            why=f"{meant.parent} is put first on PYTHONPATH, which this interpreter does not follow",
            hint="name the interpreter itself with --ddtree-python (not a wrapper, nothing with -I or -E), or install the checkout there",
        )


def _who(settings: ServerSettings, env: Mapping[str, str]) -> tuple[object, ...]:
    """What an answer depends on beside the files of the package."""
    passing = {"PYTEST_CURRENT_TEST"}
    variables = {name: value for name, value in {**os.environ, **env}.items() if name not in passing}
    return settings.python, settings.sglang_src, settings.launch_prefix, frozenset(variables.items())


def _run(
    settings: ServerSettings,
    supervisor: Supervisor,
    name: str,
    argv: Sequence[str],
    env: Mapping[str, str],
    stop_commands: Sequence[Sequence[str]],
) -> tuple[int, str]:
    """A short-lived command under the supervisor, so that it too ends with pytest; returns its exit code and output."""
    log = settings.run_dir / "logs" / f"{name}.log"
    # A script among the words is not shown: the head is one line.
    write_head(log, ["..." if "\n" in word else word for word in argv], env)
    supervisor.start(
        name, argv, env={**os.environ, **env}, cwd=Path.cwd(), log=log, stop_commands=stop_commands
    )
    code = supervisor.wait_exit(name, min(PROBE_S, settings.start_timeout_s))
    supervisor.stop(name, 2.0)
    if supervisor.stopping:
        raise PoolClosed("the build was not asked to the end: the servers are being stopped", log_path=log)
    text = logs.body(log)
    if code is None:
        waited = min(PROBE_S, settings.start_timeout_s)
        asked = f"python {' '.join(HELP)}" if name == "probe-help" else "the search for its package"
        raise StartFailed(
            f"the build did not answer within {waited:g} s: `{asked}` hangs",
            hint="an import that never ends: a driver, a device or a network disk that does not answer. Try the command by hand: the "
            "log begins with it",
            log_path=log,
            log_tail=logs.tail(text),
        )
    return code, text


def _parse(text: str) -> dict[str, Any]:
    for line in text.splitlines():
        if line.startswith("DDTREE-PROBE "):
            found: dict[str, Any] = json.loads(line.removeprefix("DDTREE-PROBE "))
            return found
    return {}
