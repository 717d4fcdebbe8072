"""Unit files: the command line of a service, and the drop-in that replaces it for one config. Pure text."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

_SPECULATIVE = "--speculative-"
_PREFIXES = "@-:+!|"


@dataclass(frozen=True, slots=True)
class Command:
    """The words of an ExecStart= line as they stand there, quotes and specifiers included, and as the program gets them."""

    raw: tuple[str, ...]
    plain: tuple[str, ...]


def exec_start(unit: str) -> Command | None:
    """The last command of the [Service] section in the output of `systemctl cat`; None when there is none."""
    found = ""
    for key, text in _service_lines(unit):
        if key == "ExecStart":
            found = text.lstrip(_PREFIXES)
    raw = _split(found)
    if not raw:
        return None
    return Command(tuple(raw), tuple(_unquote(word).replace("$$", "$") for word in raw))


def surroundings(unit: str) -> tuple[dict[str, str], str | None]:
    """The Environment= variables and the WorkingDirectory= of the [Service] section in the output of `systemctl cat`."""
    env: dict[str, str] = {}
    folder = None
    for key, text in _service_lines(unit):
        if key == "Environment":
            pairs = [_unquote(word).partition("=") for word in _split(text)]
            env = {**env, **{name: content for name, sign, content in pairs if sign}} if text else {}
        elif key == "WorkingDirectory":
            folder = text.lstrip("-") or None
    return env, folder


def without(command: Command, flags: Sequence[str]) -> Command:
    """The command without speculative flags, without `flags`, and without the values of either."""
    raw: list[str] = []
    plain: list[str] = []
    skipping = False
    for word, text in zip(command.raw, command.plain, strict=True):
        if text.startswith("--"):
            flag = text.partition("=")[0]
            skipping = flag.startswith(_SPECULATIVE) or flag in flags
        if not skipping:
            raw.append(word)
            plain.append(text)
        elif text.startswith("--") and "=" in text:
            skipping = False
    return Command(tuple(raw), tuple(plain))


def value(command: Command, flag: str) -> str | None:
    """What a flag of the command has; the last one counts."""
    found = None
    for position, text in enumerate(command.plain):
        name, sign, attached = text.partition("=")
        if name == flag:
            found = attached if sign else next(iter(command.plain[position + 1 : position + 2]), None)
    return found


def program(command: Command) -> tuple[str, ...]:
    """The words that start the server without any of its arguments: everything before the first long flag."""
    end = next(
        (index for index, text in enumerate(command.plain) if text.startswith("--")), len(command.plain)
    )
    return command.plain[:end]


def drop_in(command: Command, args: Sequence[str], env: Mapping[str, str]) -> str:
    """A drop-in that runs `command` with further arguments and variables, and that does not restart it by itself."""
    line = " ".join([*command.raw, *map(escape, args)])
    variables = [f"Environment={_quoted(f'{name}={text}')}" for name, text in sorted(env.items())]
    lines = [
        "# Written by pytest-ddtree; removed when its run ends.",
        "[Service]",
        "ExecStart=",
        f"ExecStart={line}",
    ]
    return "\n".join([*lines, *variables, "Restart=no", ""])


def escape(word: str) -> str:
    """One argument as an ExecStart= line takes it."""
    return _quoted(word.replace("$", "$$"))


def _quoted(word: str) -> str:
    """A word as every line of a unit file takes it; of variables, only command lines know any."""
    safe = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("\n", "\\n")
    return safe if re.fullmatch(r"[A-Za-z0-9_@:+=.,/%$-]+", safe) else f'"{safe}"'


def _service_lines(unit: str) -> list[tuple[str, str]]:
    """Keys and values of every [Service] section, in order, continuation lines joined."""
    section, found, begun = "", [], ""
    # Not `splitlines`: a value may hold what Unicode calls a line's end.
    for part in unit.split("\n"):
        if part.lstrip().startswith(("#", ";")):
            # Also between the lines of one command, where its backslash does not count either.
            continue
        line = begun + part.strip()
        begun = ""
        if (len(line) - len(line.rstrip("\\"))) % 2:
            begun = line[:-1] + " "
        elif line.startswith("["):
            section = line
        elif section == "[Service]" and "=" in line:
            key, _, text = line.partition("=")
            found.append((key.strip(), text.strip()))
    return found


def _split(text: str) -> list[str]:
    """Words with their quotes, as systemd splits them."""
    return re.findall(r"(?:[^\s\"']|\"(?:\\.|[^\"\\])*\"|'(?:\\.|[^'\\])*')+", text)


def _unquote(word: str) -> str:
    bare = re.sub(
        r"\"((?:\\.|[^\"\\])*)\"|'((?:\\.|[^'\\])*)'", lambda m: m[1] if m[1] is not None else m[2], word
    )
    return re.sub(r"\\(.)", r"\1", bare).replace("%%", "%")


def exit_status(shown: str) -> int | None:
    """The exit code of a unit that has ended, negative for a signal, from `systemctl show`; None while it runs."""
    fields = dict(line.split("=", 1) for line in shown.splitlines() if "=" in line)
    if fields.get("ActiveState") not in {"failed", "inactive"}:
        return None
    status = int(fields.get("ExecMainStatus") or 0)
    # CLD_KILLED and CLD_DUMPED: the status is a signal.
    return -status if fields.get("ExecMainCode") in {"2", "3"} else status


def first_difference(before: str, after: str) -> str:
    """Where two printed units differ first, in words."""
    lines = zip(before.splitlines(), after.splitlines(), strict=False)
    return next((f"{old!r} became {new!r}" for old, new in lines if old != new), "it has more or fewer lines")
