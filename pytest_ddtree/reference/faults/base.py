"""What all planted faults share."""

from __future__ import annotations

from typing import ClassVar

from ..hooks import Hooks
from ..sampling import uniform


class PlantError(ValueError):
    """A --plant value that cannot be understood; the text says what is allowed."""


class Fault(Hooks):
    """One switchable fault. Subclasses override the hooks they perturb.

    ``rate`` is the share of the opportunities at which it acts; which ones is a function of their number alone.
    """

    name: ClassVar[str]
    imitates: ClassVar[str]
    """The public bug, in one line."""
    takes: ClassVar[str] = ""
    """What the argument means, empty when there is none."""
    default: ClassVar[int] = 0

    def __init__(self, argument: str | None = None, rate: float = 1.0) -> None:
        if argument is not None and not self.takes:
            raise PlantError(f"--plant {self.name} takes no argument, got {argument!r}.")
        self.number = self.default
        if argument is not None:
            if not (argument.isascii() and argument.isdecimal()):
                raise PlantError(
                    f"--plant {self.name}:{argument}: {self.takes} must be an integer, 0 or more."
                )
            self.number = int(argument)
        self._rate = rate
        self._chances = 0

    def fires(self) -> bool:
        """Whether this opportunity is taken."""
        self._chances += 1
        return self._rate >= 1.0 or uniform(0x5EED, self._chances) < self._rate
