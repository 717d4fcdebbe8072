"""Naming cells in options: `ctx1024-c8`, `b8-k4 c=1 ctx=1024`; checked against the grid, so that a typo is no gate that never fires."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from fnmatch import fnmatchcase

from pytest_ddtree.axes import CACHES
from pytest_ddtree.grid import CellKey
from pytest_ddtree.results.model import is_baseline

MOST_HEADLINES = 6
"""A handful: every further cell takes power from the others."""


class SelectorError(ValueError):
    """What was written names no cell; the text says what there is."""


@dataclass(frozen=True, slots=True)
class Selector:
    """Which cells of which configs; None: all. `config` is an id, the beginning of one up to a dash, or a pattern with `*`."""

    config: str | None = None
    context: int | None = None
    concurrency: int | None = None
    workload: str | None = None
    temperature: str | None = None
    """As in cell ids: `0`, `0.6`, `model`."""
    cache: str | None = None

    def takes_config(self, config: str) -> bool:
        """Whether a config is meant."""
        if self.config is None:
            return True
        if "*" in self.config or "?" in self.config:
            return fnmatchcase(config, self.config)
        return config == self.config or config.startswith(self.config + "-")

    def takes(self, config: str, key: CellKey) -> bool:
        """Whether a cell is meant."""
        return (
            self.takes_config(config)
            and self.context in (None, key.context)
            and self.concurrency in (None, key.concurrency)
            and self.workload in (None, key.workload)
            and self.temperature in (None, _temperature(key))
            and self.cache in (None, key.cache)
        )


_WORD = re.compile(r"(ctx|context|c|concurrency|workload|t|temperature|cache)=(\S+)")
_CELL = re.compile(r"ctx(\d+)-c(\d+)((?:-[a-z0-9_.]+)*)")
_TEMPERATURE = re.compile(r"t([0-9.]+|model)")


def _temperature(key: CellKey) -> str:
    return key.sampling or f"{key.temperature:g}"


def parse_selector(text: str) -> Selector:
    """A selector from words: `c=8`, `ctx=1024`, `workload=code`, `t=0.6`, `cache=warm`, a cell's id, and at most one config.

    `ctx1024-c8` takes the cells of every workload, temperature and cache; `ctx1024-c8-chat-t0.6-warm` says which.

    Raises:
        SelectorError: a word that is none of these, or one thing said twice.
    """
    found: dict[str, str | int] = {}

    def put(name: str, value: str | int) -> None:
        if name in found:
            raise SelectorError(f"{text!r} says the {name} twice: {found[name]} and {value}")
        found[name] = value

    for word in text.split():
        if match := _WORD.fullmatch(word):
            name = {"ctx": "context", "c": "concurrency", "t": "temperature"}.get(match[1], match[1])
            if name in ("workload", "temperature", "cache"):
                put(name, match[2])
            elif match[2].isdigit():
                put(name, int(match[2]))
            else:
                raise SelectorError(f"{word!r}: {match[1]} takes a whole number")
        elif match := _CELL.fullmatch(word):
            put("context", int(match[1]))
            put("concurrency", int(match[2]))
            for part in match[3].split("-")[1:]:
                if drawn := _TEMPERATURE.fullmatch(part):
                    put("temperature", drawn[1])
                else:
                    put("cache" if part in CACHES else "workload", part)
        elif "=" in word:
            raise SelectorError(f"{word!r} is not known; there are c=, ctx=, workload=, t= and cache=")
        else:
            put("config", word)
    return Selector(**found)  # type: ignore[arg-type]


def check_selector(selector: Selector, configs: Sequence[str], cells: Sequence[CellKey]) -> None:
    """Refuse a selector that takes nothing of the grid.

    Raises:
        SelectorError: naming the part that fits nothing, and what there is.
    """
    if not any(selector.takes_config(config) for config in configs):
        assert selector.config is not None
        near = get_close_matches(selector.config, configs, 1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise SelectorError(f"no config {selector.config!r} in the grid ({', '.join(configs)}){hint}")
    for name, wanted, there in (
        ("ctx", selector.context, sorted({cell.context for cell in cells})),
        ("c", selector.concurrency, sorted({cell.concurrency for cell in cells})),
        ("workload", selector.workload, sorted({cell.workload for cell in cells})),
        ("t", selector.temperature, sorted({_temperature(cell) for cell in cells})),
        ("cache", selector.cache, sorted({cell.cache for cell in cells})),
    ):
        if wanted is not None and wanted not in there:
            raise SelectorError(f"no cell with {name}={wanted}; there are {', '.join(map(str, there))}")


def headline_cells(
    named: Sequence[str], configs: Sequence[str], cells: Sequence[CellKey]
) -> tuple[tuple[str, CellKey], ...]:
    """The (config, cell) pairs that are gated one by one: those named, else the sensible few.

    By default, for each speculative config, the middle context at the least and at the largest concurrency, as far as a handful
    goes; the baseline is never a headline.

    Raises:
        SelectorError: a name that fits nothing, or more cells than a handful.
    """
    speculative = [config for config in configs if not is_baseline(config)]
    if not named:
        chosen = _default_cells(cells)
        pairs = [(config, cell) for config in speculative for cell in chosen]
        return tuple(pairs[:MOST_HEADLINES])
    found: dict[tuple[str, CellKey], None] = {}
    for text in named:
        selector = parse_selector(text)
        check_selector(selector, configs, cells)
        candidates = configs if selector.config is not None else speculative
        for config in candidates:
            for cell in cells:
                if selector.takes(config, cell):
                    found[(config, cell)] = None
    if len(found) > MOST_HEADLINES:
        raise SelectorError(
            f"{len(found)} headline cells: {', '.join(f'{config} {cell.id}' for config, cell in found)}. At most {MOST_HEADLINES} have "
            "power at a common error rate; name fewer, with their config"
        )
    return tuple(found)


def _default_cells(cells: Sequence[CellKey]) -> list[CellKey]:
    if not cells:
        return []
    # Of several workloads, temperatures and caches the first: a handful of cells is all that has power.
    first = cells[0]
    cells = [cell for cell in cells if (cell.prompts, cell.cache) == (first.prompts, first.cache)]
    contexts = sorted({cell.context for cell in cells})
    middle = contexts[len(contexts) // 2]
    there = sorted(cell for cell in cells if cell.context == middle)
    widths = [cell.concurrency for cell in there]
    return [cell for cell in there if cell.concurrency in (min(widths), max(widths))]
