"""An ini file that pytest does not find, because it takes the value of an option of ours for a test path."""

from __future__ import annotations

from itertools import pairwise

import pytest

from pytest_ddtree import options

INI_NAMES = ("pytest.toml", "pytest.ini", "pyproject.toml", "tox.ini", "setup.cfg")


def refuse_lost_ini(config: pytest.Config) -> None:
    """pytest looks for its ini file before it knows our options, and takes the path behind `--ddtree-model` for a test path.

    The ini file beside the tests is then not found, and with it go markers, filters and our own settings, without a word.

    Raises UsageError, naming the option and the file.
    """
    if config.inipath is not None:
        return
    arguments = [str(argument) for argument in config.invocation_params.args]
    flags = {option.flag for option in options.OPTIONS if not option.switch}
    for flag, value in pairwise(arguments):
        if flag not in flags or value.startswith("-") or not (config.invocation_params.dir / value).exists():
            continue
        here = config.invocation_params.dir
        lost = next(
            (d / name for d in (here, *here.parents) for name in INI_NAMES if (d / name).is_file()), None
        )
        if lost is not None:
            raise pytest.UsageError(
                f"{flag} {value}: pytest took {value} for a test path and so did not read {lost}. "
                f"Write {flag}={value}, with an equals sign."
            )
