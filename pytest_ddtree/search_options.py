"""Checks of `--ddtree-fuzz` and `--ddtree-trace` before a server starts."""

from __future__ import annotations

from importlib.util import find_spec

from pytest_ddtree.exactness.trace import Trace
from pytest_ddtree.options import BY_FIELD, OptionError, Settings


def check_search(settings: Settings) -> None:
    """Refuse a saved schedule that cannot be read, and a search without its generator.

    Raises:
        OptionError: naming the option, the file and what is wrong with it.
    """
    if settings.trace is not None:
        try:
            if not Trace.load(settings.trace).requests:
                raise ValueError("this trace submits no request")
        except (OSError, ValueError) as error:
            raise OptionError(f"{BY_FIELD['trace'].flag}={settings.trace}: {error}") from None
    if settings.fuzz and find_spec("hypothesis") is None:
        raise OptionError(
            f"{BY_FIELD['fuzz'].flag} {settings.fuzz} needs hypothesis: pip install 'pytest-ddtree[suites]'"
        )
