"""What the user asked of a session: our options as given, and whether the run is one of ours at all."""

from __future__ import annotations

import ast
import re
import warnings

import pytest

from pytest_ddtree import options


def given_of(config: pytest.Config) -> dict[str, tuple[str, str]]:
    """What the user set: field -> (text, source). The command line wins.

    Raises UsageError where the ini file gives an option a value of another type than text.
    """
    given: dict[str, tuple[str, str]] = {}
    for option in options.OPTIONS:
        on_line = config.getoption(option.dest)
        if on_line is not None:
            text = "\n".join(on_line) if isinstance(on_line, list) else on_line
            given[option.field] = (text, "command line")
            continue
        in_file = _in_file(config, option)
        if in_file is not None:
            given[option.field] = (in_file, f"{option.ini} in {config.inipath or 'the ini file'}")
    return given


def _in_file(config: pytest.Config, option: options.Option) -> str | None:
    """The text that the ini file has for an option.

    `[tool.pytest]` takes strings as strings; in `[tool.pytest.ini_options]` a list comes as it is, of whatever it is made, and all else
    as its text.
    """
    with warnings.catch_warnings():
        # pytest warns of a list for one string, which is refused here.
        warnings.simplefilter("ignore", pytest.PytestDeprecationWarning)
        try:
            value = config.getini(option.ini)
        except (pytest.UsageError, TypeError, ValueError):
            raise _refusal(config, option, None) from None
    if value is None:
        return None
    items = value if isinstance(value, list) else [value]
    if (isinstance(value, list) and not option.repeatable) or not all(map(_is_text, items)):
        raise _refusal(config, option, value)
    return "\n".join(items)


def _is_text(value: object) -> bool:
    """Whether a value is a string, and not the text that pytest made of a table."""
    if not isinstance(value, str):
        return False
    if not (value.startswith("{") and value.endswith("}")):
        return True
    try:
        return not isinstance(ast.literal_eval(value), dict)
    except (ValueError, SyntaxError):
        return True


def _refusal(config: pytest.Config, option: options.Option, value: object) -> pytest.UsageError:
    """Says what to write; the value itself, which may be a password, only where it is a list of numbers or names."""
    what = "a list of strings" if option.repeatable else "one string, also of numbers"
    example = f'["{option.metavar}"]' if option.repeatable else f'"{option.metavar or "true"}"'
    if option.metavar == "LIST":
        what = "one string, with commas between the items, also of numbers"
        scalars = isinstance(value, list) and all(isinstance(item, str | int | float) for item in value)
        example = '"' + (",".join(map(str, value)) if scalars and isinstance(value, list) else "A,B") + '"'
    return pytest.UsageError(f"{option.ini} in {config.inipath}: takes {what}: {option.ini} = {example}")


def asks_for_ours(config: pytest.Config) -> bool:
    """Whether `-m` names one of our suites."""
    marks = str(getattr(config.option, "markexpr", "") or "")
    return bool({"bench", "exactness", "coding"} & set(re.findall(r"\w+", marks)))
