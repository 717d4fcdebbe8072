"""The command line and environment of one server, from the settings and what the dialect adds."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pytest_ddtree.dialects.base import BaselineKind, Launch, LaunchRequest, given, value
from pytest_ddtree.dialects.build import Build
from pytest_ddtree.dialects.draft import Draft
from pytest_ddtree.grid import Config
from pytest_ddtree.servers.errors import ConfigNotSupported
from pytest_ddtree.servers.launcher import prepare
from pytest_ddtree.servers.settings import ServerSettings

MODULES = {"reference": "pytest_ddtree.reference", "sglang": "sglang.launch_server"}
_PACKAGE_ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, slots=True)
class CommandLine:
    """What is run: arguments, the variables that are added to the environment, and the working folder."""

    argv: tuple[str, ...]
    env: Mapping[str, str]
    cwd: Path
    stop_commands: tuple[tuple[str, ...], ...] = ()
    """What stops it beside signals, for what a launcher starts elsewhere."""
    name: str | None = None
    """The container's or job's name."""


def launch_request(
    settings: ServerSettings, build: Build, baseline: BaselineKind = "matched", draft: Draft | None = None
) -> LaunchRequest:
    """The settings as a dialect needs them."""
    return LaunchRequest(
        model=settings.model or "",
        draft_model=settings.draft_model,
        block_size=settings.block_size if draft is None else settings.block_size or draft.block_size,
        max_concurrency=settings.max_concurrency,
        seed=settings.seed,
        baseline=baseline,
        server_args=settings.server_args,
        spec_args=settings.spec_args,
        baseline_args=settings.baseline_args,
        build=build,
    )


def command_lines(
    settings: ServerSettings,
    config: Config,
    launch: Launch,
    *,
    port: int,
    served_name: str,
) -> tuple[CommandLine, ...]:
    """The whole command line of each node, the one that answers HTTP first; mostly there is one.

    Prefix, interpreter, module, model, the dialect's and the user's arguments, and last what identifies the server: argparse takes
    the last of equals, so the user wins over the dialect, and nobody over the name. Raises ConfigNotSupported.
    """
    user = (*settings.server_args, *(settings.spec_args if config.speculative else settings.baseline_args))
    args: list[str] = []
    if settings.model:
        args += ["--model-path", settings.model]
    args += ["--host", settings.host]
    if settings.seed is not None:
        args += ["--random-seed", str(settings.seed)]
    if settings.context_length is not None:
        args += ["--context-length", str(settings.context_length)]
    if settings.api_key is not None:
        args += ["--api-key", settings.api_key]
    words = (*args, *launch.args, *user, "--port", str(port), "--served-model-name", served_name)
    env = {**environment(settings), **launch.env, **settings.env}
    prefixes = settings.node_prefixes or (settings.launch_prefix,)
    if len(prefixes) > 1 and not given(user, "--dist-init-addr"):
        raise ConfigNotSupported(
            "a server on several nodes needs the address where its first node waits for the others",
            hint="add --dist-init-addr HOST:PORT to --ddtree-server-args",
        )
    return tuple(
        _node(settings, prefix, rank, len(prefixes), words, env, served_name)
        for rank, prefix in enumerate(prefixes)
    )


def address(settings: ServerSettings, config: Config) -> tuple[str, int | None]:
    """Host and port on which the server will listen; the port is None when it is the pool's to choose."""
    user = (*settings.server_args, *(settings.spec_args if config.speculative else settings.baseline_args))
    host = value(user, "--host") or settings.host
    port = value(user, "--port")
    return host, int(port) if port is not None and port.isdigit() else settings.port


def _node(
    settings: ServerSettings,
    prefix: tuple[str, ...],
    rank: int,
    nodes: int,
    words: tuple[str, ...],
    env: dict[str, str],
    served_name: str,
) -> CommandLine:
    name = served_name if nodes == 1 else f"{served_name}-node{rank}"
    launcher = prepare(
        prefix, name, stop_command=settings.stop_command, env=env, grace_s=settings.stop_timeout_s
    )
    # In a container or on another host this interpreter's path means nothing.
    python = settings.python or ("python3" if launcher.foreign else sys.executable)
    safe = ("-P",) if settings.kind == "reference" else ()
    several = ("--nnodes", str(nodes), "--node-rank", str(rank)) if nodes > 1 else ()
    argv = (*launcher.prefix, python, *safe, "-m", MODULES[settings.kind], *words, *several)
    return CommandLine(argv, env, Path.cwd(), launcher.stop_commands, launcher.name)


def package_root(checkout: Path) -> Path:
    """The folder of a checkout that holds the package `sglang`: the repository keeps it under `python/`."""
    inner = checkout / "python"
    return inner if (inner / "sglang").is_dir() else checkout


def environment(settings: ServerSettings) -> dict[str, str]:
    """Variables that every command of this build gets: the checkout first on PYTHONPATH, the GPUs of this pool."""
    added: dict[str, str] = {"PYTHONUNBUFFERED": "1"}
    first = [str(package_root(settings.sglang_src))] if settings.sglang_src else []
    if settings.kind == "reference":
        first.append(str(_PACKAGE_ROOT))
    if first:
        rest = os.environ.get("PYTHONPATH")
        added["PYTHONPATH"] = os.pathsep.join([*first, *([rest] if rest else [])])
    if settings.gpus is not None:
        added["CUDA_VISIBLE_DEVICES"] = ",".join(settings.gpus)
    return added
