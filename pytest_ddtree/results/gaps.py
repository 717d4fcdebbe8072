"""What one of two runs has and the comparison with the other leaves out: which config or cells, why, and what that means. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any, Literal

from pytest_ddtree.grid import CellKey
from pytest_ddtree.results.asked import asked_configs, asks_for, out_of_time
from pytest_ddtree.results.change import Comparison
from pytest_ddtree.results.model import Failing, Results, is_baseline
from pytest_ddtree.results.runs import StoredRun

Why = Literal[
    "corrupt",
    "error",
    "unknown",
    "missing",
    "other",
    "infeasible",
    "out of time",
    "not asked for",
    "new",
    "baseline only",
]
"""Wrong answers; a test that ended in an error; not judged; not measured; measured, but with other prompts or rounds; the server
cannot hold it; what a run left out for want of time, or did not ask for; what the earlier run does not have; nothing speculative
was compared."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """One thing that was not compared, or is no figure to go by."""

    why: Why
    run: str
    """Of which run it is said."""
    config: str
    cells: tuple[CellKey, ...] = ()
    """The cells that were not compared because of it."""
    text: str = ""
    """What the record says of it."""
    code: int = 0
    """1: the later run got worse. 2: what should have been compared was not. 0: no more than told."""

    def __str__(self) -> str:
        cells = f" {', '.join(key.id for key in self.cells)}" if self.cells else ""
        said = {
            "corrupt": f"corrupt in {self.run}",
            "error": f"error in {self.run}",
            "unknown": f"could not be judged in {self.run}",
            "missing": f"missing in {self.run}",
            "other": f"not comparable in {self.run}",
            "infeasible": f"cannot be held in {self.run}",
            "out of time": f"left out of {self.run}, whose time was spent",
            "not asked for": f"not asked for in {self.run}",
            "new": f"only in {self.run}",
            "baseline only": "nothing speculative was compared",
        }[self.why]
        what = f"{self.config}{cells}"
        return f"{said}{f': {what}' if what else ''}{f': {self.text}' if self.text else ''}"

    @property
    def lacking(self) -> bool:
        """Whether speculative figures of the earlier run, or the verdict on them, have no counterpart."""
        return self.why != "new" and not is_baseline(self.config) and bool(self.cells or self.code)

    def as_json(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "why": self.why,
            "run": self.run,
            "config": self.config,
            "cells": [key.id for key in self.cells],
            "text": self.text,
            "exit_code": self.code,
        }


def gaps(before: StoredRun, now: StoredRun, comparison: Comparison) -> tuple[Gap, ...]:
    """What the comparison of two runs leaves out, what weighs most first."""
    compared = {(change.config, change.key) for change in comparison.changes if change.key is not None}
    measured = (config for config, _ in before.results.cells)
    configs = list(dict.fromkeys([*measured, *before.results.verdicts, *before.results.coding]))
    asked = asked_configs(now)
    found: list[Gap] = []
    for config in configs:
        found += _of_config(before, now, config, compared, asked)
    names = {*configs, *_named(now), *(asked or ())}
    found += [
        _error(now, name, errors, 0 if name and name not in configs else 2)
        for name, errors in _errors(now, names).items()
        if name not in configs
    ]
    for config in dict.fromkeys([*(config for config, _ in now.results.cells), *now.results.corrupt]):
        cells = _lacking(now.results, config, {*compared, *before.results.cells})
        is_now = now.results.verdict(config)
        corrupt = config not in configs and is_now is not None and is_now.kind == "corrupt"
        if cells or corrupt:
            said = f"corrupt: {is_now.summary()}" if corrupt and is_now is not None else ""
            found.append(Gap(why="new", run=now.id, config=config, cells=cells, text=said))
    speculative = {
        config for config, _ in (*before.results.cells, *now.results.cells) if not is_baseline(config)
    }
    if compared and speculative and all(is_baseline(config) for config, _ in compared):
        text = "only cells of the baseline are on both sides"
        found.append(Gap(why="baseline only", run=now.id, config="", text=text, code=2))
    return tuple(sorted(found, key=lambda gap: (gap.code != 1, -gap.code, gap.why == "new")))


def _of_config(
    before: StoredRun,
    now: StoredRun,
    config: str,
    compared: Collection[tuple[str, CellKey | None]],
    asked: frozenset[str] | None,
) -> Iterator[Gap]:
    """What of a config of the earlier run has no counterpart."""
    was, is_now = before.results.verdict(config), now.results.verdict(config)
    errors = _errors(now, {*_named(before), *_named(now), *(asked or ())}).get(config, [])
    # Whatever its options say, what a run has a word on it was asked for.
    known = is_baseline(config) or config in _named(now) or bool(errors) or asked is None or config in asked
    lacking = _lacking(before.results, config, compared)
    wanted = tuple(key for key in lacking if known and asks_for(now, key))
    unwanted = tuple(key for key in lacking if key not in wanted)
    explained = False
    if is_now is not None and not is_now.passed:
        explained, corrupt = True, is_now.kind == "corrupt"
        text = f"{is_now.summary()}: {'; '.join(is_now.reasons)}"
        yield Gap(
            why="corrupt" if corrupt else "unknown",
            run=now.id,
            config=config,
            cells=wanted,
            text=text,
            code=1 if corrupt else 2,
        )
    if coding := _wrong_code(now, config):
        yield Gap(why="corrupt", run=now.id, config=config, text=coding, code=1)
    if was is not None and not was.passed:
        yield Gap(
            why="corrupt" if was.kind == "corrupt" else "unknown",
            run=before.id,
            config=config,
            cells=() if explained else wanted,
            text=f"{was.summary()}; its figures are no base",
            code=2 if known else 0,
        )
        explained = True
    if coding := _wrong_code(before, config):
        yield Gap(why="corrupt", run=before.id, config=config, text=coding, code=2 if known else 0)
    if errors:
        yield _error(now, config, errors, 2, () if explained else wanted)
        explained = True
    if unwanted:
        yield Gap(why="not asked for", run=now.id, config=config, cells=unwanted)
    if wanted and not explained:
        yield from _left(now, config, wanted, anything=any(of == config for of, _ in compared))


def _left(now: StoredRun, config: str, wanted: tuple[CellKey, ...], *, anything: bool) -> Iterator[Gap]:
    """Why cells that a run was asked for are not compared although nothing is wrong with their config."""
    groups: dict[tuple[Why, str], list[CellKey]] = {}
    for key in wanted:
        reason: tuple[Why, str] = ("missing", "")
        if (config, key) in now.results.cells:
            reason = ("other", "it was measured with other prompts or other rounds")
        elif (config, key) in now.infeasible:
            reason = ("infeasible", now.infeasible[config, key])
        elif out_of_time(now):
            reason = ("out of time", "")
        groups.setdefault(reason, []).append(key)
    for (why, text), keys in groups.items():
        # A comparison of builds leaves out what one of them cannot hold, too, unless nothing is left.
        told = is_baseline(config) or why == "out of time" or (why == "infeasible" and anything)
        yield Gap(why=why, run=now.id, config=config, cells=tuple(keys), text=text, code=0 if told else 2)


def _lacking(
    results: Results, config: str, others: Collection[tuple[str, CellKey | None]]
) -> tuple[CellKey, ...]:
    return tuple(key for of, key in results.cells if of == config and (of, key) not in others)


def _wrong_code(stored: StoredRun, config: str) -> str:
    """What the coding eval says of a config whose answers it found corrupt; else empty."""
    summary = stored.results.coding.get(config)
    if summary is None or not summary.corrupt:
        return ""
    return f"{summary.corrupt} of {summary.problems} coding answers are corrupt; {summary.comparison}"


def _named(stored: StoredRun) -> set[str]:
    """The configs that a record has a word on."""
    results = stored.results
    return {
        *(config for config, _ in results.cells),
        *results.verdicts,
        *results.effective,
        *results.coding,
        *(start.config for start in results.starts),
        *(config for config, _ in stored.infeasible),
    }


def _errors(stored: StoredRun, configs: Collection[str]) -> dict[str, list[Failing]]:
    """The tests that ended in an error by the config in their name; empty for those that name none."""
    found: dict[str, list[Failing]] = {}
    for one in stored.results.failing.values():
        if one.outcome == "error":
            inside = f"-{one.nodeid.partition('[')[2].removesuffix(']')}-"
            # `b8-k4-wnone-s16` begins with the name of another config.
            named = max((name for name in configs if f"-{name}-" in inside), key=len, default="")
            found.setdefault(named, []).append(one)
    return found


def _error(
    stored: StoredRun, config: str, errors: list[Failing], code: int, cells: tuple[CellKey, ...] = ()
) -> Gap:
    first = errors[0]
    line = next(iter(first.text.splitlines()), "")
    more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
    text = f"{first.nodeid.rpartition('::')[2]}: {line}{more}"
    return Gap(why="error", run=stored.id, config=config, cells=cells, text=text, code=code)
