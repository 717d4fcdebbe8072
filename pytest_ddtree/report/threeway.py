"""Best baseline | chain | tree, side by side: a tree that only beats the baseline may still lose to the plain chain. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from pytest_ddtree.grid import CHAIN, CellKey
from pytest_ddtree.report.text import figure, table
from pytest_ddtree.results.model import CellFigures, Results, is_baseline

HEAD = (
    "context",
    "concurrency",
    "best baseline",
    "chain",
    "x baseline",
    "tree",
    "tok/s",
    "x baseline",
    "x chain",
)


@dataclass(frozen=True, slots=True)
class ThreeWay:
    """One table: which chain, under which conditions, and its rows."""

    chain: str
    conditions: str
    rows: tuple[tuple[str, ...], ...]


def three_ways(results: Results) -> list[ThreeWay]:
    """A table for each chain and each set of conditions in which it and a tree of its window and block size were measured.

    Speedups come with their 95 % interval; what was not measured, or is corrupt, is a dash.
    """
    tables: dict[tuple[str, str], list[tuple[str, ...]]] = {}
    measured = list(dict.fromkeys((key.conditions, key.cache) for _, key in results.cells))

    def place(cell: tuple[str, CellKey]) -> tuple[int, CellKey, tuple[int, ...]]:
        return measured.index((cell[1].conditions, cell[1].cache)), cell[1], _order(cell[0])

    for config, key in sorted(results.cells, key=place):
        chain = chain_of(config)
        tree, plain = results.figures(config, key), results.figures(chain, key)
        if config == chain or is_baseline(config) or tree is None or plain is None:
            continue
        if results.groups.get(config) != results.groups.get(chain):
            # Measured at the same time on other GPUs: their ratio is no property of the configs.
            continue
        base = results.base(config, key)
        where = f"{key.conditions}, cache {plain.rounds[0].cache}"
        tables.setdefault((chain, where), []).append(_row(key, base, plain, tree))
    return [ThreeWay(chain, where, tuple(rows)) for (chain, where), rows in tables.items()]


def three_way(results: Results) -> list[str]:
    """The tables as lines for the terminal; nothing where no chain was measured."""
    lines: list[str] = []
    for one in three_ways(results):
        lines.append(f"best baseline | {one.chain} | tree: tok/s, {one.conditions}")
        lines.extend([*table(HEAD, one.rows), ""])
    return lines


def chain_of(config: str) -> str:
    """The id of the chain with a config's window and block size: `b8-k4-w2048-s16` -> `chain-w2048-s16`."""
    parts = config.split("-")
    return "-".join([CHAIN, *(part for part in parts[1:] if part.startswith(("w", "s")))])


def _order(config: str) -> tuple[int, ...]:
    # By budget and topk, so that the rows of a cell read like a sweep.
    return tuple(
        int(part[1:]) for part in config.split("-") if part.startswith(("b", "k")) and part[1:].isdigit()
    )


def _row(key: CellKey, base: CellFigures | None, chain: CellFigures, tree: CellFigures) -> tuple[str, ...]:
    return (
        str(key.context),
        str(key.concurrency),
        "-" if base is None else figure(base.tok_s),
        figure(chain.tok_s),
        _speedup(chain, base),
        tree.config,
        figure(tree.tok_s),
        _speedup(tree, base),
        _speedup(tree, chain),
    )


def _speedup(figures: CellFigures, base: CellFigures | None) -> str:
    return "-" if base is None else figure(figures.speedup_over(base), digits=2)


def flat_rows(results: Results) -> Iterable[tuple[str, ...]]:
    """The rows of all tables with their conditions, for formats that show one table."""
    for one in three_ways(results):
        yield from ((f"{one.chain}, {one.conditions}", *row) for row in one.rows)


FLAT_HEAD = ("chain and conditions", *HEAD)
