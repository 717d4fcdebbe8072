"""Words before the server's command: programs that vanish into it (numactl), and launchers whose server is no child of ours.

A container inherits neither our environment nor our signals, and a Slurm step runs elsewhere: for docker, podman, nerdctl and srun a
name of ours goes into their arguments and is used to stop it. What is not known needs a stop command from the user.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath

from pytest_ddtree.servers import secrets
from pytest_ddtree.servers.errors import ConfigNotSupported
from pytest_ddtree.servers.lock import user_name

_CONTAINERS = frozenset({"docker", "podman", "nerdctl"})
_TRANSPARENT = frozenset(
    {
        *(
            "numactl",
            "taskset",
            "nice",
            "ionice",
            "chrt",
            "env",
            "stdbuf",
            "setarch",
            "prlimit",
            "time",
            "timeout",
            "setsid",
        ),
        *(
            "catchsegv",
            "nsys",
            "ncu",
            "py-spy",
            "strace",
            "perf",
            "cgexec",
            "sudo",
            "runuser",
            "setpriv",
            "uv",
            "conda",
            "poetry",
        ),
    }
)
"""Programs that run the server as themselves or as their child on this host: the supervisor reaches it."""


@dataclass(frozen=True, slots=True)
class Launcher:
    """A prefix that is ready to use, and how what it starts is stopped beside signals."""

    prefix: tuple[str, ...] = ()
    stop_commands: tuple[tuple[str, ...], ...] = ()
    foreign: bool = False
    """Whether the server has its own file system or host: our interpreter's path means nothing there."""
    name: str | None = None
    """The container's or job's name."""


def prepare(
    prefix: Sequence[str], name: str, *, stop_command: Sequence[str], env: Mapping[str, str], grace_s: float
) -> Launcher:
    """The launcher for one start. `name` is unique to it; `env` are variables that the server must have.

    Raises ConfigNotSupported for an unknown program without a stop command, for a container whose port nobody could reach, and for
    a server that runs as a user whom nobody here may signal.
    """
    if not prefix:
        return Launcher()
    own = ((*_named(stop_command, name),),) if stop_command else ()
    for index, word in enumerate(prefix):
        program = PurePath(word).name
        if program in _CONTAINERS:
            return _container(prefix, index, name, own, env, grace_s)
        if program == "srun":
            head, rest = prefix[: index + 1], prefix[index + 1 :]
            given = _value(rest, "--job-name", "-J")
            job = given or name
            words = (*head, *(() if given else (f"--job-name={job}",)), *rest)
            return Launcher(tuple(words), own or (("scancel", "--me", f"--name={job}"),), True, job)
    program = PurePath(prefix[0]).name
    if program not in _TRANSPARENT and not own:
        raise ConfigNotSupported(
            f"--ddtree-launch-prefix begins with {program!r}, and it is not known how to stop what that starts",
            why="only docker, podman, nerdctl, srun and programs that run the server as their own process are known: "
            + ", ".join(sorted(_TRANSPARENT)),
            hint="say how with --ddtree-stop-command; {name} in it is replaced with a name that is unique to the start",
        )
    if not own and (who := _of_another_user(prefix)):
        raise ConfigNotSupported(
            f"--ddtree-launch-prefix runs the server as another user ({who}), whose processes pytest may not stop",
            hint="run pytest as root, or say how with --ddtree-stop-command; {name} in it is replaced with a name that is unique to "
            "the start",
        )
    return Launcher(_named(prefix, name), own, bool(own), name if own else None)


def _of_another_user(prefix: Sequence[str]) -> str | None:
    """The `sudo` among the words that takes the server out of our reach, with whom it runs it as; None where it does not."""
    if os.geteuid() == 0:
        return None
    for index, word in enumerate(prefix):
        if PurePath(word).name == "sudo":
            user = _value(prefix[index + 1 :], "-u", "--user") or "root"
            return None if user == user_name() else f"{word}: {user}"
    return None


def _container(
    prefix: Sequence[str],
    index: int,
    name: str,
    own: tuple[tuple[str, ...], ...],
    env: Mapping[str, str],
    grace_s: float,
) -> Launcher:
    words = list(prefix)
    try:
        run = words.index("run", index)
    except ValueError:
        raise ConfigNotSupported(
            f"--ddtree-launch-prefix uses {words[index]} without `run`",
            hint=f"a container of its own is needed: {words[index]} run --gpus all --network host IMAGE",
        ) from None
    options = words[run + 1 :]
    if not _host_network(options):
        raise ConfigNotSupported(
            "the container of --ddtree-launch-prefix has a network of its own, so the port of each start cannot be reached",
            why=shlex.join(secrets.arguments(prefix)),
            hint="add --network host",
        )
    given = _value(options, "--name")
    label = given or name
    added = [] if given else ["--name", label]
    added += ["--label", f"pytest-ddtree={name}"]
    if "--rm" not in options:
        added.append("--rm")
    for key, value in env.items():
        added += ["--env", f"{key}={value}"]
    client = words[: index + 1]
    stops = own or (
        (*client, "stop", "--time", str(max(1, int(grace_s))), label),
        (*client, "rm", "--force", label),
    )
    return Launcher((*words[: run + 1], *added, *options), stops, True, label)


def _host_network(options: Sequence[str]) -> bool:
    return _value(options, "--network", "--net") == "host"


def _value(options: Sequence[str], *names: str) -> str | None:
    """What an option of these names has, as `--x=v`, `--x v` or `-Jv`; None without it."""
    for position, word in enumerate(options):
        flag, sign, attached = word.partition("=")
        if flag in names:
            return attached if sign else next(iter(options[position + 1 : position + 2]), None)
        for name in names:
            if len(name) == 2 and word.startswith(name) and len(word) > 2:
                return word[2:]
    return None


def _named(words: Sequence[str], name: str) -> tuple[str, ...]:
    return tuple(word.replace("{name}", name) for word in words)
