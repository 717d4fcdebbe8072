"""What cannot be started: options that no server takes end the session; configs that the build cannot express are said and skipped."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

import pytest

from pytest_ddtree.axis_flags import refused_axes
from pytest_ddtree.errors import Infrastructure
from pytest_ddtree.items import judged_config_of
from pytest_ddtree.servers.errors import ConfigNotSupported, SetupRefused

if TYPE_CHECKING:
    from pytest_ddtree.run import Run


class Checked(Protocol):
    """A session, or a comparison of builds."""

    def check(self) -> None: ...


def check_setup(run: Checked) -> None:
    """Refuse options with which no test could get a server: each would be the same error, after a wait.

    What is not known to be the options' fault (a host that does not answer, a GPU that is taken) is left to the tests, whose error says
    it. Raises UsageError.
    """
    try:
        run.check()
    except (ConfigNotSupported, SetupRefused) as error:
        raise pytest.UsageError(str(error)) from None
    except Infrastructure:
        return


def set_aside(run: Run, items: Sequence[pytest.Item]) -> list[str]:
    """Skip the tests of configs that the build cannot run; returns why, one line a config.

    Raises UsageError, listing what the build has, when no speculative config is left, or when an axis is nothing that the build takes.
    What cannot be found out now is left to the tests, whose error says it.
    """
    speculative = {config for config in run.plan.configs if config.speculative}
    axes = {config.axis for config in speculative if config.axis is not None}
    try:
        why = run.unsupported(speculative)
        odd = refused_axes(axes, embedded=run.settings.server == "reference", flags=run.flags())
    except (ConfigNotSupported, SetupRefused) as error:
        raise pytest.UsageError(str(error)) from None
    except Infrastructure:
        return []
    if odd:
        raise pytest.UsageError("\n".join(odd))
    lines = [f"{config.id} cannot run on this build: {why[config]}" for config in sorted(why, key=str)]
    if speculative and len(why) == len(speculative):
        raise pytest.UsageError("\n".join(lines))
    for item in items:
        config = judged_config_of(item)
        if config in why:
            item.add_marker(pytest.mark.skip(reason=f"this build cannot run {config.id}: {why[config]}"))
    for line in lines:
        run.warn(line)
    return lines
