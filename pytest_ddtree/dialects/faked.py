"""Signs that a server fakes or relaxes what it answers. Such a server is not judged."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pytest_ddtree.dialects import serverinfo

_PREFIX = "SGLANG_SIMULATE_ACC_"
_THRESHOLDS = ("speculative_accept_threshold_single", "speculative_accept_threshold_acc")


def before_start(args: Sequence[str], env: Mapping[str, str]) -> list[str]:
    """What in the command line or environment makes a server's answers worthless, in words; empty when nothing does."""
    found = [_simulated(name, value) for name, value in sorted(env.items()) if _counts(name, value)]
    for position, arg in enumerate(args):
        flag, sign, attached = arg.partition("=")
        if flag == "--allow-auto-truncate":
            found.append("--allow-auto-truncate cuts long inputs silently")
        if flag in {f"--{name.replace('_', '-')}" for name in _THRESHOLDS}:
            text = attached if sign else next(iter(args[position + 1 : position + 2]), "")
            if not _is_one(text):
                found.append(f"{flag} {text}: acceptance is relaxed, the output is not the target's")
    return found


def after_start(info: Mapping[str, Any]) -> list[str]:
    """The same from `/server_info`, for servers that somebody else runs and values that come from elsewhere."""
    found = [
        f"{name} = {info[name]}: acceptance is relaxed, the output is not the target's"
        for name in _THRESHOLDS
        if info.get(name) is not None and not _is_one(info[name])
    ]
    if info.get("allow_auto_truncate") is True:
        found.append("allow_auto_truncate cuts long inputs silently")
    variables = serverinfo.env_variables(info)
    found += [_simulated(name, value) for name, value in sorted(variables.items()) if _counts(name, value)]
    return found


def _counts(name: str, value: str) -> bool:
    # SGLang reads a length of -1 as: not simulated.
    return name.startswith(_PREFIX) and value.strip() not in {"", "-1", "-1.0", "None", "0", "False", "false"}


def _simulated(name: str, value: str) -> str:
    return f"{name}={value}: the accept length is simulated"


def _is_one(value: object) -> bool:
    try:
        return float(str(value)) == 1.0
    except ValueError:
        return False
