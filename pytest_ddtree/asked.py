"""What the user asked of a session: our options as given, and whether the run is one of ours at all."""

from __future__ import annotations

import re

import pytest

from pytest_ddtree import options


def given_of(config: pytest.Config) -> dict[str, tuple[str, str]]:
    """What the user set: field -> (text, source). The command line wins."""
    given: dict[str, tuple[str, str]] = {}
    for option in options.OPTIONS:
        on_line = config.getoption(option.dest)
        if on_line is not None:
            text = "\n".join(on_line) if isinstance(on_line, list) else on_line
            given[option.field] = (text, "command line")
            continue
        in_file = config.getini(option.ini)
        if isinstance(in_file, list):
            in_file = "\n".join(in_file)
        if in_file is not None:
            given[option.field] = (str(in_file), f"{option.ini} in {config.inipath or 'the ini file'}")
    return given


def asks_for_ours(config: pytest.Config) -> bool:
    """Whether `-m` names one of our suites."""
    marks = str(getattr(config.option, "markexpr", "") or "")
    return bool({"bench", "exactness", "coding"} & set(re.findall(r"\w+", marks)))
