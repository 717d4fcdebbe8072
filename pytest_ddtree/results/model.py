"""What a session found out, as plain values: starts, effective configs, verdicts, cells. Reports read these and nothing else."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field
from typing import Any

import numpy as np

from pytest_ddtree.coding.summary import CodingSummary
from pytest_ddtree.exactness.verdict import Verdict
from pytest_ddtree.grid import CellKey
from pytest_ddtree.results.statistics import Interval, log_mean, outliers, ratio


@dataclass(frozen=True, slots=True)
class Quantiles:
    """Quantiles over all requests of a cell, linear between neighbours; NaN without a value."""

    p50: float
    p90: float
    p99: float

    @classmethod
    def of(cls, values: Iterable[float]) -> Quantiles:
        """The quantiles of these values."""
        ordered = np.sort(np.fromiter(values, dtype=np.float64))
        if ordered.size == 0:
            return cls(math.nan, math.nan, math.nan)
        p50, p90, p99 = np.quantile(ordered, (0.5, 0.9, 0.99))
        return cls(float(p50), float(p90), float(p99))

    def as_json(self) -> dict[str, float | None]:
        """Plain values; None for NaN, which JSON does not have."""
        return {"p50": finite(self.p50), "p90": finite(self.p90), "p99": finite(self.p99)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """One round of load on one cell: the unit that is measured, stored and resumed. Times in seconds, one per request."""

    config: str
    key: CellKey
    number: int
    """0 for the first; the same number has the same prompts on every config."""
    requests: int
    tokens: int
    """Output tokens of all requests."""
    wall_s: float
    """From the first request sent to the last token received."""
    ttft_s: tuple[float, ...]
    time_per_token_s: tuple[float, ...]
    latency_s: tuple[float, ...]
    verify_steps: int | None
    """Verify steps of all requests; None where the server does not say."""
    cached_tokens: int | None
    decode_tok_s: float | None
    tokens_after_end: int = 0
    """Tokens behind the first end-of-sequence token of their answer: there a model loops and a drafter loves it."""
    most_after_end: int | None = None
    """Of them in the one answer that has most."""
    looping: int | None = None
    """Answers that end in a loop; None where they came without token ids."""
    distinct_4grams: float | None = None
    """Mean over the answers of the share of distinct 4-grams of their tokens; None where they came without token ids."""
    cache: str = "flushed"
    """State of the prefix cache when the round began."""
    build: str | None = None
    """Name of the engine build in a comparison of builds; None where there is only one."""
    start_no: int | None = None
    """Which start of the session's servers this was measured on; rounds of one start share its luck."""
    at: float | None = None
    """When the round ended, seconds since 1970."""
    prompts: str = ""
    """Digest of the numbers of the prompts where they were chosen for their answers; empty: the first ones in order."""
    chunk_gap_s: tuple[float, ...] = ()
    """p50, p90, p99 and the longest gap between chunks of one stream: stalls, no time per token."""
    prefill_tok_s: float | None = None
    """Prompt tokens that no cache served over the time to the first token; at concurrency 1 only."""
    counted_steps: int | None = None
    """Verify steps by the server's own counter, as a check on `verify_steps`."""
    client_cpu: float | None = None
    """Share of a core that the client used."""
    client_lag_s: float | None = None
    """How late the client's event loop was on average."""
    coalesced: int | None = None
    """Reads of the client that held several chunks: these have one arrival."""
    again: int = 0
    """0 for the first measurement of this round; later ones, taken to see drift, are no part of the cell's figures."""

    @property
    def tok_s(self) -> float:
        """Output tokens per second of wall time, prefill included."""
        return self.tokens / self.wall_s

    def as_json(self) -> dict[str, Any]:
        """Plain values for the store."""
        fields = {name: getattr(self, name) for name in self.__dataclass_fields__ if name != "key"}
        return {**fields, **key_json(self.key)}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Round:
        """The inverse of `as_json`; what older schemas do not have keeps its default. Raises KeyError or TypeError for no round."""
        needed = {name for name, of in cls.__dataclass_fields__.items() if of.default is MISSING}
        fields = {
            name: value[name]
            for name in cls.__dataclass_fields__
            if name != "key" and (name in value or name in needed)
        }
        for name in ("ttft_s", "time_per_token_s", "latency_s", "chunk_gap_s"):
            if name not in fields:
                continue
            fields[name] = tuple(float(item) for item in fields[name])
        return cls(key=key_from_json(value), **fields)


@dataclass(frozen=True, slots=True, kw_only=True)
class CellFigures:
    """The figures of one cell of one config, over its rounds."""

    config: str
    key: CellKey
    rounds: tuple[Round, ...]
    stopped: str = ""
    """Why there are no more rounds: `precise`, `max_rounds`, `max_seconds`; empty where nobody knows any more."""

    def __post_init__(self) -> None:
        if not self.rounds:
            raise ValueError(f"{self.config} {self.key.id}: no round, no figures")

    @property
    def tok_s_rounds(self) -> tuple[float, ...]:
        return tuple(one.tok_s for one in self.rounds)

    @property
    def tok_s(self) -> Interval:
        """Output tokens per second of wall time, prefill included: geometric mean over the rounds."""
        return log_mean(self.tok_s_rounds)

    @property
    def requests(self) -> int:
        return sum(one.requests for one in self.rounds)

    @property
    def tokens(self) -> int:
        return sum(one.tokens for one in self.rounds)

    @property
    def ttft_s(self) -> Quantiles:
        return Quantiles.of(value for one in self.rounds for value in one.ttft_s)

    @property
    def time_per_token_s(self) -> Quantiles:
        return Quantiles.of(value for one in self.rounds for value in one.time_per_token_s)

    @property
    def latency_s(self) -> Quantiles:
        return Quantiles.of(value for one in self.rounds for value in one.latency_s)

    @property
    def accept_length(self) -> float | None:
        """Tokens per verify step over all rounds; None unless every round said its steps."""
        steps = [one.verify_steps for one in self.rounds]
        known = [step for step in steps if step]
        return self.tokens / sum(known) if len(known) == len(steps) else None

    @property
    def cached_tokens(self) -> int | None:
        counts = [one.cached_tokens for one in self.rounds]
        known = [count for count in counts if count is not None]
        return sum(known) if len(known) == len(counts) else None

    @property
    def after_end(self) -> float:
        """Share of tokens behind the end of their answer."""
        return sum(one.tokens_after_end for one in self.rounds) / self.tokens if self.tokens else 0.0

    @property
    def looping(self) -> int:
        """Answers that end in a loop, as far as rounds say it."""
        return sum(one.looping or 0 for one in self.rounds)

    @property
    def decode_tok_s(self) -> float | None:
        """Tokens per second while at least one request was decoding: geometric mean over the rounds."""
        return _middle(one.decode_tok_s for one in self.rounds)

    @property
    def prefill_tok_s(self) -> float | None:
        """Prompt tokens per second, at concurrency 1: geometric mean over the rounds."""
        return _middle(one.prefill_tok_s for one in self.rounds)

    @property
    def chunk_gap_s(self) -> Quantiles:
        """Gaps between chunks: means of the rounds' quantiles."""
        known = [one.chunk_gap_s for one in self.rounds if len(one.chunk_gap_s) >= 3]
        if not known:
            return Quantiles(math.nan, math.nan, math.nan)
        return Quantiles(*(math.fsum(gaps[at] for gaps in known) / len(known) for at in range(3)))

    @property
    def outliers(self) -> tuple[Round, ...]:
        """Rounds far from the others. They are shown and stay in every figure: what slowed one may slow a user."""
        return tuple(self.rounds[at] for at in outliers(self.tok_s_rounds))

    def speedup_over(self, base: CellFigures) -> Interval:
        """tok/s of this cell over tok/s of the same cell of another config."""
        return ratio(self.tok_s_rounds, base.tok_s_rounds)

    def as_json(self) -> dict[str, Any]:
        """Plain values for reports, units in the names."""
        interval = self.tok_s
        return {
            "config": self.config,
            "cell": self.key.id,
            **key_json(self.key),
            "tok_s": {
                "value": interval.value,
                "low": finite(interval.low),
                "high": finite(interval.high),
                "rounds": list(self.tok_s_rounds),
            },
            "requests": self.requests,
            "tokens": self.tokens,
            "ttft_s": self.ttft_s.as_json(),
            "time_per_token_s": self.time_per_token_s.as_json(),
            "latency_s": self.latency_s.as_json(),
            "decode_tok_s": self.decode_tok_s,
            "prefill_tok_s": self.prefill_tok_s,
            "chunk_gap_s": self.chunk_gap_s.as_json(),
            "outlier_rounds": [one.number for one in self.outliers],
            "stopped": self.stopped,
            "accept_length": self.accept_length,
            "cached_tokens": self.cached_tokens,
            "share_after_end": self.after_end,
            "looping_answers": self.looping,
            "cache": self.rounds[0].cache,
        }


def _middle(values: Iterable[float | None]) -> float | None:
    """Geometric mean of the values that are known; None without any."""
    known = [value for value in values if value]
    return math.exp(math.fsum(map(math.log, known)) / len(known)) if known else None


def finite(value: float) -> float | None:
    """The value, or None for NaN and infinities."""
    return value if math.isfinite(value) else None


def key_json(key: CellKey) -> dict[str, Any]:
    """A cell as plain values, units in the names."""
    return {
        "context_tokens": key.context,
        "concurrency": key.concurrency,
        "workload": key.workload,
        "temperature": key.temperature,
        "sampling": key.sampling,
    }


def key_from_json(value: Mapping[str, Any]) -> CellKey:
    """The inverse of `key_json`, of older schemas too; raises KeyError for what is none."""
    cache = value.get("cache")
    return CellKey(
        value["context_tokens"],
        value["concurrency"],
        value["workload"],
        value["temperature"],
        value.get("sampling", ""),
        # A server without a prefix cache has none to empty: such rounds belong to the cell that asked for an empty one.
        cache if cache in ("warm", "untouched") else "flushed",
    )


@dataclass(frozen=True, slots=True)
class StartInfo:
    """One start of a server: which config, why beyond the first, how long it took."""

    config: str
    reason: str | None
    seconds: float


def config_order(config: str) -> tuple[int, list[int], str]:
    """Sorts the ids of configs as people look for them: baseline, chains, then trees by their numbers; not as they were started."""
    rank = 0 if is_baseline(config) else 1 if config.startswith("chain") else 2
    return rank, [int(number) for number in re.findall(r"\d+", config)], config


def baseline_id(group: str) -> str:
    """What the baseline of another group than the first is called: `baseline@group1`."""
    return f"baseline@{group}"


def is_baseline(config: str) -> bool:
    """Whether a config id is a baseline's, of whatever group."""
    return config.partition("@")[0] == "baseline"


def that_counts(verdicts: Sequence[Verdict]) -> Verdict | None:
    """Of the verdicts on a config, oldest first, the one that counts: the first that found it corrupt, else the last; None without any.

    What could not be judged at one level, or by an interrupted session, may be judged later; what was found corrupt stays so.
    """
    corrupt = next((one for one in verdicts if one.kind == "corrupt"), None)
    return corrupt or (verdicts[-1] if verdicts else None)


@dataclass(frozen=True, slots=True)
class Failing:
    """A test that did not pass: `failed` is a verdict, `error` is infrastructure."""

    nodeid: str
    outcome: str
    text: str


@dataclass(slots=True)
class Results:
    """Everything found so far, in the order in which it was found."""

    starts: list[StartInfo] = field(default_factory=list)
    effective: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    verdicts: dict[str, list[Verdict]] = field(default_factory=dict)
    """Config id -> verdicts in their order, see `that_counts`."""
    cells: dict[tuple[str, CellKey], CellFigures] = field(default_factory=dict)
    coding: dict[str, CodingSummary] = field(default_factory=dict)
    overhead: str = ""
    """Where the time went and how much of it was the harness itself, as a sentence."""
    drift: list[str] = field(default_factory=list)
    """What the machine did between the beginning and the end of the session, a sentence for each cell measured twice."""
    warnings: list[str] = field(default_factory=list)
    differences: dict[str, list[str]] = field(default_factory=dict)
    """`b8-k4-wnone against the matched baseline` -> the conditions in which the two servers differ."""
    groups: dict[str, str] = field(default_factory=dict)
    """Config id -> the group of servers it ran in, where several ran at once and it is not the first one."""
    failing: dict[str, Failing] = field(default_factory=dict)
    """Tests that did not pass, by node id."""
    recorded: list[str] = field(default_factory=list)
    """What became expected figures, as lines."""
    faults: list[tuple[str, str]] = field(default_factory=list)
    """In a comparison of builds: (config on which build, what is wrong with its server) that failed the test."""
    strict: bool = False
    """Whether what is undecided fails."""
    gates: list[Mapping[str, Any]] = field(default_factory=list)
    """What `Gate.as_json` gave, in the order in which cells were judged."""

    def base(self, config: str, key: CellKey) -> CellFigures | None:
        """The baseline's figures that a config is compared with: those of its own group, where several ran at once."""
        group = self.group(config)
        return self.figures(baseline_id(group) if group else "baseline", key)

    def group(self, config: str) -> str:
        """Which group of servers a config ran in; empty for the first one, and where there is only one."""
        return config.partition("@")[2] if is_baseline(config) else self.groups.get(config, "")

    def verdict(self, config: str) -> Verdict | None:
        """The verdict on a config that counts, see `that_counts`."""
        return that_counts(self.verdicts.get(config, []))

    def figures(self, config: str, key: CellKey) -> CellFigures | None:
        """The figures of a cell, unless the config is corrupt: the speed of wrong answers is no result."""
        verdict = self.verdict(config)
        if verdict is not None and not verdict.passed:
            return None
        return self.cells.get((config, key))

    def speedup(self, config: str, key: CellKey) -> Interval | None:
        """tok/s over the baseline's cell of this run; None for the baseline itself, and where one of the two is missing."""
        figures, base = self.figures(config, key), self.base(config, key)
        return None if is_baseline(config) or figures is None or base is None else figures.speedup_over(base)

    @property
    def corrupt(self) -> list[str]:
        """Ids of the configs that are corrupt."""
        verdicts = {config: self.verdict(config) for config in self.verdicts}
        return [
            config
            for config, verdict in verdicts.items()
            if verdict is not None and verdict.kind == "corrupt"
        ]

    def note_test(self, nodeid: str, outcome: str, text: str) -> None:
        """What became of a test: `passed`, `failed` or `error`; a later session of the run may know better."""
        if outcome == "passed":
            self.failing.pop(nodeid, None)
        else:
            self.failing[nodeid] = Failing(nodeid, outcome, text)

    @property
    def empty(self) -> bool:
        return not (self.starts or self.verdicts or self.cells or self.coding or self.failing)
