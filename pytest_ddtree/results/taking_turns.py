"""The design of an A/B of builds: how often it looks, which cells are judged at which level, and when further passes would tell. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pytest_ddtree.grid import CellKey
from pytest_ddtree.results.change import Change, Comparison
from pytest_ddtree.results.compare import compare
from pytest_ddtree.results.model import Results, key_from_json, key_json
from pytest_ddtree.results.selectors import headline_cells

MOST = 4
"""While nothing is decided there are more passes, up to so many times what was asked. Each time it is looked once."""


CACHES_ALIKE = 0.05
"""Caches that differ by no more than this share are alike: a patch may take some memory of its own."""


def rounds_of_stay(rounds: int, passes: int) -> int:
    """Rounds of a cell in one stay of a build: those that one server would measure, spread over the passes.

    Two at least, or a stay has no noise of its own.
    """
    return max(2, -(-rounds // passes))


@dataclass(frozen=True, slots=True, kw_only=True)
class AbDesign:
    """What was declared before the builds took turns; stored, so that a reader of the record judges as the session did."""

    rounds: int
    """Of a cell in one stay of a build."""
    passes: int
    """As asked for; see `MOST`."""
    alpha: float
    """Error rate of the whole session."""
    configs: int
    """How many configs share it."""
    headline: tuple[tuple[str, CellKey], ...]
    """(config id, cell) that are judged one by one."""
    at_once: bool = False
    """Whether the servers of all builds are up at once and take turns round by round, not stay by stay."""

    @property
    def cap(self) -> int:
        """The most passes."""
        return MOST * self.passes

    def compare(
        self, base: Results, other: Results, *, config: str, names: tuple[str, str], passes: tuple[int, int]
    ) -> Comparison:
        """One config on the base and on another build; `passes` is on how many starts each was measured.

        What the passes that were asked for show is confirmed by further ones.
        """
        found = compare(
            _of(base, config),
            _of(other, config),
            names=names,
            same_session=True,
            starts=passes,
            alpha=self.alpha / max(1, self.configs),
            block_rounds=self.rounds,
            headline=self.headline,
            looks=MOST,
        )
        return replace(found, confirmed=min(passes) >= 2 * self.passes, at_once=self.at_once)

    def as_json(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "passes": self.passes,
            "rounds": self.rounds,
            "alpha": self.alpha,
            "configs": self.configs,
            "at_once": self.at_once,
            "headline": [
                {"config": config, **key_json(key), "cache": key.cache} for config, key in self.headline
            ],
        }

    @classmethod
    def from_json(cls, record: Mapping[str, Any], configs: Mapping[str, Sequence[CellKey]]) -> AbDesign:
        """The inverse. Records of before had passes and rounds alone: the rest is what it is by default for `configs`, the
        cells that were measured of each. Raises KeyError or ValueError for what is none."""
        headline = (
            tuple((str(one["config"]), key_from_json(one)) for one in record["headline"])
            if "headline" in record
            else default_headline(configs)
        )
        return cls(
            rounds=int(record["rounds"]),
            passes=int(record["passes"]),
            alpha=float(record.get("alpha", 0.001)),
            configs=int(record.get("configs", len(configs))),
            headline=headline,
            at_once=bool(record.get("at_once", False)),
        )


def in_turns(
    design: AbDesign,
    compared: Callable[[int], tuple[Comparison, ...]],
    *,
    no_time: Callable[[int], str] = lambda passes: "",
    say: Callable[[str], None] = lambda text: None,
) -> tuple[tuple[Comparison, ...], str]:
    """The comparisons after as many passes as it takes, and why there were no more although they would tell something.

    `compared` makes the passes up to a number of them, and compares; `no_time` says why so many passes more have no time.
    """
    passes = design.passes
    while True:
        found = compared(passes)
        reasons = "; ".join(dict.fromkeys(filter(None, map(would_tell, found))))
        if not reasons:
            return found, ""
        if passes >= design.cap:
            return found, f"no more passes: {passes} are {MOST} times what --ddtree-ab-passes asks for"
        if stopped := no_time(design.passes):
            return found, stopped
        say(f"{reasons}; {design.passes} more passes")
        passes += design.passes


def default_headline(configs: Mapping[str, Sequence[CellKey]]) -> tuple[tuple[str, CellKey], ...]:
    """The headlines of a record that names none: those that its cells have when nothing is declared."""
    cells = sorted({key for keys in configs.values() for key in keys})
    return headline_cells((), list(configs), cells)


def would_tell(comparison: Comparison) -> str:
    """Why further passes are worth their time; empty where they are not.

    A build that is worse already is blamed whatever else they would show, unless the machine was not quiet. But two stays that
    agree by luck look like a quiet machine: what the first passes show is called a change when twice as many show it.
    """
    if comparison.unrest is not None:
        return "the machine is not quiet, passes disagree"
    if not comparison.confirmed and comparison.beyond_noise:
        return f"to be confirmed: {_names(comparison.beyond_noise)}"
    if comparison.worse or not comparison.undecided:
        return ""
    return f"undecided: {_names(comparison.undecided)}"


def uneven_caches(tokens: Mapping[str, int | None]) -> str:
    """That servers which are up at once have caches of different sizes, tokens by build; empty where they have not, or do not say.

    A share of the memory is one of what is free when a server starts: who comes second gets less.
    """
    known = {build: count for build, count in tokens.items() if count}
    if not known or max(known.values()) <= (1 + CACHES_ALIKE) * min(known.values()):
        return ""
    sizes = ", ".join(f"{build} {count}" for build, count in known.items())
    return (
        f"the caches of builds that are up at once hold different numbers of tokens ({sizes}), which can slow one down: "
        "the server that starts first takes more where the size is a share of the free memory; --max-total-tokens among "
        "--ddtree-server-args gives all the same"
    )


def _names(changes: Sequence[Change]) -> str:
    return ", ".join(f"{change.where} {change.metric}" for change in changes)


def _of(results: Results, config: str) -> Results:
    return Results(
        cells={cell: figures for cell, figures in results.cells.items() if cell[0] == config},
        verdicts={of: verdicts for of, verdicts in results.verdicts.items() if of == config},
        starts=[one for one in results.starts if one.config == config],
    )
