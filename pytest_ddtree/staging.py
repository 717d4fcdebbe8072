"""A sweep is staged: until a first config, the pilot, could be judged, few are tried. A broken set-up must not cost a night of starts."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pytest_ddtree.errors import Infrastructure
from pytest_ddtree.exactness.verdict import Verdict
from pytest_ddtree.grid import Config

PILOTS = 2
"""So many configs in a row that cannot be started or judged end the sweep; one alone may just not fit into the memory."""


class SweepStopped(Infrastructure):
    """A config was not tried, because none of those before it could be started or judged."""


class Pilot:
    """Admits the configs of a sweep one after the other; all of them as soon as one was judged, whatever its verdict.

    A corrupt pilot stops nothing but itself: often one budget is right where another is wrong, and every config is judged before it
    costs benchmark time.
    """

    def __init__(self, configs: Sequence[Config], *, progress: Callable[[str], None]) -> None:
        self._count = len(configs)
        self._progress = progress
        self._failed: dict[str, str] = {}
        self._open = False

    def admit(self, config: Config) -> None:
        """Raises SweepStopped where the set-up is plainly broken."""
        if self._open or config.id in self._failed or len(self._failed) < PILOTS:
            return
        causes = "\n".join(f"  {name}: {cause}" for name, cause in self._failed.items())
        raise SweepStopped(
            f"{config.id} is not tried: {len(self._failed)} configs could be neither started nor judged, and none could:\n{causes}\n"
            f"Mend that, or leave these configs out of the grid."
        )

    def judged(self, config: Config, verdict: Verdict) -> None:
        """A config could be judged."""
        if self._open:
            return
        self._open = True
        if self._count > 1:
            self._progress(f"pilot {config.id} is {verdict.kind}; {self._count - 1} more to go")

    def failed(self, config: Config, error: Infrastructure) -> None:
        """A config could not be started, or not be judged."""
        if not self._open and not isinstance(error, SweepStopped):
            self._failed.setdefault(config.id, str(error).partition("\n")[0])
