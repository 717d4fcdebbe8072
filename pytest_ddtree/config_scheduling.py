"""How pytest-xdist deals out tests when each worker has a server of its own: by config, one config a worker at a time.

xdist's own `xdist_group` marker does not group any more on pytest 9.2 (xdist 3.8.0), and dealing out single tests would start every
config on every worker.
"""

from __future__ import annotations

import re
from typing import Any, Final

import pytest
from xdist.scheduler import LoadScopeScheduling  # type: ignore[import-untyped]

_CONFIG: Final = re.compile(
    r"\[(?P<config>baseline|(?:chain|b\d+-k\d+)-w(?:none|\d+)(?:-s\d+)?(?:\+[a-z0-9-]+\.[\w.]+)?)(?=[-\]])"
)
ELSEWHERE: Final = "tests without a server"
"""The scope of tests that name no config."""


def config_of(nodeid: str) -> str | None:
    """The config id in a test's name, None for tests without a server."""
    match = _CONFIG.search(nodeid.rpartition("::")[2])
    return match["config"] if match else None


class ConfigScheduling(LoadScopeScheduling):  # type: ignore[misc]
    """Deals out all tests of one config together, and the next config when a worker runs out of work.

    In the order of the items: xdist would begin with the config that has most tests, and the baseline, which has fewest, would be
    started once more for its own.
    """

    def __init__(self, config: pytest.Config, log: Any = None) -> None:
        super().__init__(config, log)
        config.option.loadscopereorder = False

    def _split_scope(self, nodeid: str) -> str:
        return config_of(nodeid) or ELSEWHERE
