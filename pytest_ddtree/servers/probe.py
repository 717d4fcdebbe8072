"""Asking a build what it takes, before any server is started: its `--help`, its version, the variables its sources name."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_ddtree.dialects.build import ENV_KNOBS, Build, flags_of_help
from pytest_ddtree.servers import logs, source
from pytest_ddtree.servers.errors import SetupRefused, StartFailed
from pytest_ddtree.servers.launcher import prepare
from pytest_ddtree.servers.settings import ServerSettings
from pytest_ddtree.servers.supervise import Supervisor

PROBE_S = 300.0
"""SGLang imports torch before it prints its help; on a cold network disk that takes minutes."""

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


def probe(settings: ServerSettings, supervisor: Supervisor, env: Mapping[str, str]) -> Probed:
    """Run the build's interpreter twice: to find its package, and for its help.

    Raises SetupRefused when it has no SGLang, StartFailed when that does not answer.
    """

    def ask(name: str, *words: str) -> str:
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

    located = ask("probe-package", "-c", _LOCATE, ",".join(ENV_KNOBS))
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
    text = ask("probe-help", "-m", "sglang.launch_server", "--help")
    flags = flags_of_help(text)
    if "--model-path" not in flags:
        cause = logs.classify(text)
        raise StartFailed(
            "this SGLang does not start: `python -m sglang.launch_server --help` lists no flags",
            why=logs.root_cause(text),
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
    return Probed(build, state)


def _run(
    settings: ServerSettings,
    supervisor: Supervisor,
    name: str,
    argv: Sequence[str],
    env: Mapping[str, str],
    stop_commands: Sequence[Sequence[str]],
) -> str:
    """A short-lived command under the supervisor, so that it too ends with pytest; returns its output."""
    log = settings.run_dir / "logs" / f"{name}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    log.write_bytes(b"")
    supervisor.start(
        name, argv, env={**os.environ, **env}, cwd=Path.cwd(), log=log, stop_commands=stop_commands
    )
    code = supervisor.wait_exit(name, min(PROBE_S, settings.start_timeout_s))
    supervisor.stop(name, 2.0)
    text = logs.read(log)
    if code is None:
        raise StartFailed(
            f"the build did not answer within {min(PROBE_S, settings.start_timeout_s):g} s",
            why=" ".join(argv[-3:]),
            hint="try that command by hand",
            log_path=log,
            log_tail=logs.tail(text),
        )
    return text


def _parse(text: str) -> dict[str, Any]:
    for line in text.splitlines():
        if line.startswith("DDTREE-PROBE "):
            found: dict[str, Any] = json.loads(line.removeprefix("DDTREE-PROBE "))
            return found
    return {}
