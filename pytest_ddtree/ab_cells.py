"""Which cells builds are compared on: those that the servers of all of them can hold."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pytest_ddtree.build_run import BuildRun
from pytest_ddtree.errors import Infrastructure
from pytest_ddtree.grid import CellKey, Config


class ComparedCells:
    """The cells of each config. One that a build cannot hold is told once, with the build and the reason, and left to none of them."""

    def __init__(self, cells: Sequence[CellKey], say: Callable[[str], None]) -> None:
        self._cells = tuple(sorted(cells))
        self._say = say
        self._left_out: dict[tuple[Config, CellKey], str] = {}

    def of(self, config: Config) -> tuple[CellKey, ...]:
        """The cells that are compared. Raises Infrastructure where none is left, for that is no comparison."""
        left = tuple(key for key in self._cells if (config, key) not in self._left_out)
        if self._cells and not left:
            reasons = "; ".join(text for (of, _), text in self._left_out.items() if of == config)
            raise Infrastructure(f"{config.id}: no cell can be compared: {reasons}")
        return left

    def leave_out(self, config: Config, key: CellKey, build: str, reason: str) -> None:
        """From now on no build is measured on it."""
        if (config, key) not in self._left_out:
            self._left_out[config, key] = f"build {build}: {reason}"
            self._say(f"{config.id}: a cell is not compared: build {build}: {reason}")

    def leave_out_what_does_not_fit(self, run: BuildRun, config: Config) -> None:
        """Ask the server of a build that is up. Raises Infrastructure where no cell is left."""
        for key in self.of(config):
            reason = run.speed.refusal(config, key)
            if reason is not None:
                self.leave_out(config, key, run.spec.name, reason)
        self.of(config)
