"""What every kind of server has to do for the pool."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from pytest_ddtree.dialects.base import BaselineKind
from pytest_ddtree.grid import Config
from pytest_ddtree.servers.handle import Running


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """One start that the pool wants: what, its number, its name for people, where its log goes, until when (monotonic)."""

    config: Config
    variant: BaselineKind
    number: int
    launch: str
    log_path: Path
    deadline: float
    budget_s: float
    progress: Callable[[str], None]
    closing: Callable[[], bool]

    @property
    def title(self) -> str:
        kind = " (best baseline)" if self.variant == "best" else ""
        return f"server {self.config.id}{kind}"


class Backend(Protocol):
    """Brings servers up and takes them down. Not thread-safe but for `alarm`; the pool holds its lock around each call."""

    def check(self, configs: Sequence[Config]) -> None:
        """Refuse options with which no server of these configs can be had. Starts none.

        Raises ConfigNotSupported or SetupRefused; another ServerError where it could not be found out.
        """

    def same_flags(self, config: Config) -> bool:
        """Whether the best baseline's command line equals the matched one's."""

    def unsupported(self, config: Config) -> str | None:
        """Why the build cannot run a config, in words that list what it has; None when it can. Starts no server."""

    def start(self, order: Order) -> Running:
        """Bring one up and prove what it runs. Raises ServerError; then nothing of it is left."""

    def stop(self, running: Running) -> None:
        """Take one down. Raises StopFailed."""

    def alarm(self) -> None:
        """Begin to stop everything, return at once; may be called from a signal handler."""

    def close(self) -> list[str]:
        """End everything; returns what could not be removed, in words."""
