"""The command line and environment of one server, from the settings and what the dialect adds."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pytest_ddtree.dialects.base import BaselineKind, Launch, LaunchRequest, given
from pytest_ddtree.dialects.build import Build
from pytest_ddtree.dialects.draft import Draft
from pytest_ddtree.grid import Config
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
        build=build,
    )


def command_line(
    settings: ServerSettings,
    config: Config,
    launch: Launch,
    *,
    port: int,
    served_name: str,
    launch_name: str = "ddtree",
) -> CommandLine:
    """The whole command line: prefix, interpreter, module, model, what identifies the server, the user's and the dialect's arguments.

    What the user gives comes last among equals, so that it wins where argparse takes the last.
    """
    user = (*settings.server_args, *(settings.spec_args if config.speculative else settings.baseline_args))
    args: list[str] = []
    if settings.model:
        args += ["--model-path", settings.model]
    args += ["--host", settings.host]
    if not given(user, "--port"):
        args += ["--port", str(port)]
    args += ["--served-model-name", served_name]
    if settings.seed is not None and not given(user, "--random-seed"):
        args += ["--random-seed", str(settings.seed)]
    if settings.context_length is not None and not given(user, "--context-length"):
        args += ["--context-length", str(settings.context_length)]
    if settings.api_key is not None and not given(user, "--api-key"):
        args += ["--api-key", settings.api_key]
    env = {**environment(settings), **launch.env, **settings.env}
    launcher = prepare(
        settings.launch_prefix,
        launch_name,
        stop_command=settings.stop_command,
        env=env,
        grace_s=settings.stop_timeout_s,
    )
    # In a container or on another host this interpreter's path means nothing.
    python = settings.python or ("python3" if launcher.foreign else sys.executable)
    safe = ("-P",) if settings.kind == "reference" else ()
    argv = (*launcher.prefix, python, *safe, "-m", MODULES[settings.kind], *args, *launch.args, *user)
    return CommandLine(argv, env, Path.cwd(), launcher.stop_commands, launcher.name)


def environment(settings: ServerSettings) -> dict[str, str]:
    """Variables that every command of this build gets: the checkout first on PYTHONPATH, the GPUs of this pool."""
    added: dict[str, str] = {"PYTHONUNBUFFERED": "1"}
    first = [str(settings.sglang_src)] if settings.sglang_src else []
    if settings.kind == "reference":
        first.append(str(_PACKAGE_ROOT))
    if first:
        rest = os.environ.get("PYTHONPATH")
        added["PYTHONPATH"] = os.pathsep.join([*first, *([rest] if rest else [])])
    if settings.gpus is not None:
        added["CUDA_VISIBLE_DEVICES"] = ",".join(settings.gpus)
    return added
