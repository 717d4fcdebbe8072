"""Keys that must not reach a log, an error or a report."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

HIDDEN = "***"
_FLAGS = ("--api-key", "--admin-api-key", "--ssl-keyfile-password")
_FIELDS = ("api_key", "admin_api_key", "ssl_keyfile_password")
_WORDS = ("KEY", "TOKEN", "SECRET", "PASSW", "CREDENTIAL")
_USER_INFO = re.compile(r"(?<=://)[^/?#\s]+@")
_VARIABLE = re.compile(r"(?P<head>(?:--env=|-e)?(?P<name>[A-Z_][A-Z0-9_]*)=).*", re.DOTALL)
"""A variable as `env` and the clients of containers take it."""


def arguments(argv: Sequence[str]) -> tuple[str, ...]:
    """A command line with the values of key flags hidden, and those of variables whose names speak of keys."""
    hidden: list[str] = []
    previous = ""
    for word in argv:
        flag, sign, _ = word.partition("=")
        if previous in _FLAGS:
            hidden.append(HIDDEN)
        elif sign and flag in _FLAGS:
            hidden.append(f"{flag}={HIDDEN}")
        elif (variable := _VARIABLE.fullmatch(word)) and _speaks_of_keys(variable["name"]):
            hidden.append(variable["head"] + HIDDEN)
        else:
            hidden.append(word)
        previous = word
    return tuple(hidden)


def variables(env: Mapping[str, str]) -> dict[str, str]:
    """Environment variables with the values of those hidden whose names speak of keys."""
    return {name: HIDDEN if _speaks_of_keys(name) else value for name, value in env.items()}


def _speaks_of_keys(name: str) -> bool:
    return any(word in name.upper() for word in _WORDS)


def fields(info: Mapping[str, Any]) -> dict[str, Any]:
    """`/server_info` with its keys hidden, those of `internal_states` and the launch command too."""
    clean: dict[str, Any] = {}
    for name, value in info.items():
        if name in _FIELDS and value is not None:
            clean[name] = HIDDEN
        elif name == "internal_states" and isinstance(value, list):
            clean[name] = [fields(state) if isinstance(state, Mapping) else state for state in value]
        elif name == "launch_command" and isinstance(value, str):
            clean[name] = " ".join(arguments(value.split(" ")))
        elif name == "launch_command" and isinstance(value, list):
            clean[name] = list(arguments([str(word) for word in value]))
        else:
            clean[name] = value
    return clean


def url(address: str) -> str:
    """An address without the user and password that it may have."""
    return _USER_INFO.sub(f"{HIDDEN}@", address)


def text(words: str, key: str | None) -> str:
    """A text with the key itself hidden wherever it stands."""
    return words.replace(key, HIDDEN) if key else words
