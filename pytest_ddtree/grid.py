"""The grid: configs of the speculative server, the cells they are measured in, their ids and their order."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Literal

from pytest_ddtree.axes import Cache

Kind = Literal["baseline", "chain", "tree"]

CHAIN = "chain"
"""What `--ddtree-budget` takes for the plain DFlash chain."""


@dataclass(frozen=True, slots=True)
class Axis:
    """What sets a config apart from its neighbour in the grid: further server arguments, or another chat template variable."""

    name: str
    value: str
    arguments: tuple[str, ...] = ()
    thinking: bool | None = None
    """Whether the chat template enables thinking; None: as the session has it."""

    @property
    def id(self) -> str:
        return f"{self.name}.{self.value}"


@dataclass(frozen=True, slots=True)
class Config:
    """One point of the grid.

    `budget` counts the draft-tree nodes verified per step without the root; `topk` is the most candidates per draft depth;
    `window` is the draft sliding window in tokens (None: full context); `block_size` is the number of positions that the drafter
    predicts in one pass, the bonus token included (None: what the draft checkpoint says).
    """

    kind: Kind
    budget: int | None = None
    topk: int | None = None
    window: int | None = None
    block_size: int | None = None
    axis: Axis | None = None
    """Under which other server arguments its exactness is proved again; None: under the session's own."""

    def __post_init__(self) -> None:
        if self.kind == "tree":
            if self.budget is None or self.topk is None:
                raise ValueError("a tree config needs a budget and a topk")
        elif self.budget is not None or self.topk is not None:
            raise ValueError(f"a {self.kind} config has neither budget nor topk")
        if self.kind == "baseline" and (self.window is not None or self.block_size is not None):
            raise ValueError("the baseline has no drafter, hence neither window nor block size")

    @property
    def speculative(self) -> bool:
        """Whether a drafter takes part."""
        return self.kind != "baseline"

    @property
    def id(self) -> str:
        """The id in test names and reports: `b8-k4-w2048`, `chain-wnone`, `baseline`; `-s16` for a block size of its own,
        `+page-size.64` for server arguments of its own."""
        if self.kind == "baseline":
            return "baseline"
        head = CHAIN if self.kind == "chain" else f"b{self.budget}-k{self.topk}"
        tail = "" if self.block_size is None else f"-s{self.block_size}"
        own = "" if self.axis is None else f"+{self.axis.id}"
        return f"{head}-w{'none' if self.window is None else self.window}{tail}{own}"

    def under(self, axis: Axis) -> Config:
        """The same config under other server arguments."""
        return replace(self, axis=axis)

    def __str__(self) -> str:
        return self.id


@dataclass(frozen=True, slots=True, order=True)
class CellKey:
    """What was measured: the matrix point without its config."""

    context: int
    concurrency: int
    workload: str = "code"
    temperature: float = 0.0
    sampling: str = ""
    """`model`: with what generation_config.json recommends beside its temperature (top_p, top_k, min_p); empty: nothing."""
    cache: Cache = "flushed"
    """State of the prefix cache that each round begins with: flushed, warm or untouched."""

    @property
    def prompts(self) -> str:
        """Which cells share their chosen prompts, apart from the context: what is asked, and how is sampled."""
        drawn = f"-t{self.sampling or format(self.temperature, 'g')}"
        return self.workload + (drawn if self.temperature else "")

    @property
    def id(self) -> str:
        """As in test names: `ctx1024-c8`, then workload class, temperature and cache where they are not the default."""
        parts = [f"ctx{self.context}", f"c{self.concurrency}"]
        if self.workload != "code":
            parts.append(self.workload)
        if self.temperature:
            parts.append(f"t{self.sampling or format(self.temperature, 'g')}")
        if self.cache != "flushed":
            parts.append(self.cache)
        return "-".join(parts)

    @property
    def conditions(self) -> str:
        """What a table of contexts and concurrencies has above it: `code, temperature 0`."""
        own = f" ({self.sampling}'s own sampling)" if self.sampling else ""
        return f"{self.workload}, temperature {self.temperature:g}{own}"


BASELINE = Config("baseline")


def max_tree_nodes(budget: int, topk: int, block_size: int) -> int:
    """Nodes of the largest tree: min(budget, all nodes of a topk-ary tree of depth block_size - 1), the root excluded."""
    depth = block_size - 1
    total = 0
    level = 1
    for _ in range(depth):
        level *= topk
        total += level
        if total >= budget:
            return budget
    return total


def verify_width(config: Config, block_size: int) -> int:
    """Rows of one verify step: the tree's nodes and its root; the chain verifies the whole block, the baseline one token."""
    if config.kind == "baseline":
        return 1
    size = config.block_size or block_size
    if config.kind == "chain":
        return size
    assert config.budget is not None
    assert config.topk is not None
    return max_tree_nodes(config.budget, config.topk, size) + 1


def make_grid(
    budgets: Sequence[int | str],
    topks: Sequence[int],
    windows: Sequence[int | None],
    block_sizes: Sequence[int | None] = (None,),
    *,
    keep: Callable[[Config], bool] | None = None,
) -> tuple[Config, ...]:
    """The speculative configs of the full product, in the order of the lists, each once; the chain has no topk."""
    configs: list[Config] = []
    for block_size, window, budget in product(block_sizes, windows, budgets):
        if budget == CHAIN:
            configs.append(Config("chain", window=window, block_size=block_size))
            continue
        if not isinstance(budget, int):
            raise ValueError(f"a budget is a whole number or {CHAIN!r}, not {budget!r}")
        configs.extend(Config("tree", budget, topk, window, block_size) for topk in topks)
    unique = list(dict.fromkeys(configs))
    return tuple(config for config in unique if keep is None or keep(config))


def sort_key(config: Config) -> tuple[str, int, int, int, int, int]:
    """Baseline first, then chains, then trees by block size, window, topk and budget: the order in which servers are started."""
    rank = {"baseline": 0, "chain": 1, "tree": 2}[config.kind]
    window = -1 if config.window is None else config.window
    own = "" if config.axis is None else config.axis.id
    return own, rank, config.block_size or 0, window, config.topk or 0, config.budget or 0


def ordered(configs: Iterable[Config]) -> tuple[Config, ...]:
    """The configs, each once, in the order in which their servers are started."""
    return tuple(sorted(set(configs), key=sort_key))
