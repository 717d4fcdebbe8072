"""What a comparison of builds costs: what is certain, and the further passes that it may take to decide. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from pytest_ddtree.estimate import Count, PlannedStart
from pytest_ddtree.grid import CellKey
from pytest_ddtree.results.order import blocks
from pytest_ddtree.results.taking_turns import MOST, rounds_of_stay

FLOOR_CONDITIONS = 3
"""At most at so many concurrencies the baseline is asked for its noise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AbCost:
    """A comparison as it was asked for. Where a build is corrupt, or no server of it starts, it costs less than what is certain."""

    builds: tuple[str, ...]
    """The base first."""
    configs: tuple[str, ...]
    """Ids of the configs that the builds are compared on."""
    cells: tuple[CellKey, ...]
    passes: int
    rounds: int
    """Of a cell, as asked for one server: spread over the passes."""
    min_rounds: int
    turnovers: int
    prompts: int
    """That prove exactness."""
    flags_may_differ: bool
    """Whether the baseline's own best flags may need a start of their own."""
    at_once: bool = False
    """Whether the builds take turns round by round, each of which warms up for itself."""

    @property
    def stay_rounds(self) -> int:
        """Rounds of a cell in one stay of a build."""
        return rounds_of_stay(self.rounds, self.passes)

    @property
    def stays(self) -> int:
        """Starts of one config that are certain: each stay of a build is one, because another build had the GPU before."""
        return len(self.builds) * self.passes

    def starts(self) -> tuple[PlannedStart, ...]:
        """The starts with their reasons. Each build's baseline is started once, whatever the number of configs."""
        base, *others = self.builds
        judges = "its answers and noise, by which every build is judged"
        starts = [PlannedStart(f"baseline of {base}", f"{judges}, and its speeds")]
        starts += [
            PlannedStart(f"baseline of {other}", f"its answers and noise, by which {other} is judged")
            for other in others
        ]
        if self.flags_may_differ and self.cells:
            reason = "best-baseline: where its own best flags are not the speculative servers'"
            starts.append(PlannedStart(f"baseline of {base}", reason, certain=False))
        order = [block.build for block in blocks(self.builds, passes=2, rounds=self.stay_rounds)]
        turns = " ".join(order) + (", ..." if self.passes > 2 else "")
        how = (
            "the builds are up at once, pass by pass" if self.at_once else f"the builds take turns ({turns})"
        )
        more = f"ab: further passes, {self.passes} at a time, while something is undecided or to be confirmed"
        for config in self.configs:
            starts.append(PlannedStart(config, f"ab: {how}", times=self.stays))
            starts.append(PlannedStart(config, more, certain=False, times=(MOST - 1) * self.stays))
        return tuple(starts)

    def counts(self) -> tuple[Count, ...]:
        """Rounds, requests and answers, least and most."""
        rounds = self.stay_rounds
        fewest = min(rounds, self.min_rounds)
        # A stay measures every cell anew, warm-up included, and so many rounds whatever their spread.
        stays, cells = len(self.configs) * self.stays, len(self.cells)
        streams = sum(cell.concurrency for cell in self.cells)
        stay = self._stay_requests
        least, most = (1 + self.turnovers * n for n in (fewest, rounds))
        answers = len(self.configs) * self._answers_of_config
        return (
            Count(
                "rounds, those of the base's baseline included",
                cells * (stays * rounds + fewest),
                cells * (MOST * stays * rounds + rounds),
            ),
            Count(
                "requests of cells, their warm-up included",
                streams * (stays * stay + least),
                streams * (MOST * stays * stay + most),
            ),
            Count("answers that prove exactness, and the judging of each", answers, answers),
        )

    @property
    def serial_requests(self) -> int:
        """No stream of requests is longer than all of them together: what bounds a session that hangs."""
        measured = len(self.cells) * self._stay_requests
        judged = 2 * len(self.configs) * self._answers_of_config
        floors = len(self.builds) * FLOOR_CONDITIONS * self.prompts
        return measured * (MOST * len(self.configs) * self.stays + 1) + judged + floors

    @property
    def _stay_requests(self) -> int:
        """Requests of one stream of a cell in one stay, those that warm up included."""
        warm_ups = self.stay_rounds if self.at_once else 1
        return warm_ups + self.turnovers * self.stay_rounds

    @property
    def _answers_of_config(self) -> int:
        """Every build alone and side by side; the others once more for the base's recorded answers."""
        own = self.prompts + self.prompts // 2 + 1
        return len(self.builds) * own + (len(self.builds) - 1) * self.prompts
