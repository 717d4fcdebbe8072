"""The config that a server really runs: each knob with what was asked, what HTTP says, what the log says and what it did."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, Final, Literal

Source = Literal["asked", "log", "http", "behaviour"]


class Unknown(Enum):
    """The type of `UNKNOWN`: nobody said. Not the same as None, which for a window means: full context."""

    UNKNOWN = "unknown"

    def __repr__(self) -> str:
        return "unknown"


UNKNOWN: Final = Unknown.UNKNOWN

Value = str | int | float | bool | None | tuple[int, ...] | Unknown

KNOBS: Final = (
    "algorithm",
    "block_size",
    "budget",
    "verify_width",
    "topk",
    "window",
    "compact_cache",
    "attention_backend",
    "prefill_attention_backend",
    "decode_attention_backend",
    "draft_attention_backend",
    "page_size",
    "radix_cache",
    "overlap",
    "cuda_graph",
    "max_running_requests",
    "mem_fraction",
    "context_length",
    "max_total_tokens",
    "seed",
    "deterministic",
    "incremental_streaming",
    "accept_threshold_single",
    "accept_threshold_acc",
    "auto_truncate",
)
"""Knobs in the order of the table. `algorithm` is `none`, `DFLASH` (chain) or `DDTREE` (tree), however the build spells it."""


@dataclass(frozen=True, slots=True)
class Reading:
    """One knob as each source states it; `UNKNOWN` where a source says nothing."""

    asked: Value = UNKNOWN
    http: Value = UNKNOWN
    log: Value = UNKNOWN
    behaviour: Value = UNKNOWN

    @property
    def value(self) -> Value:
        """What is in force as far as known: behaviour over log over HTTP over what was asked."""
        return next(
            (v for v in (self.behaviour, self.log, self.http, self.asked) if v is not UNKNOWN), UNKNOWN
        )

    @property
    def source(self) -> Source | None:
        """Where `value` comes from."""
        if self.behaviour is not UNKNOWN:
            return "behaviour"
        if self.log is not UNKNOWN:
            return "log"
        if self.http is not UNKNOWN:
            return "http"
        return "asked" if self.asked is not UNKNOWN else None


@dataclass(frozen=True, slots=True)
class EffectiveConfig:
    """Every knob with its sources, and what the build itself warned of (block size mismatch, fallbacks)."""

    readings: Mapping[str, Reading] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()

    def reading(self, knob: str) -> Reading:
        """The sources of one knob."""
        return self.readings.get(knob, Reading())

    def get(self, knob: str) -> Value:
        """What is in force for `knob`, `UNKNOWN` if nobody says."""
        return self.reading(knob).value

    def source(self, knob: str) -> Source | None:
        """Which source `get(knob)` rests on."""
        return self.reading(knob).source

    @property
    def algorithm(self) -> Value:
        return self.get("algorithm")

    @property
    def block_size(self) -> Value:
        return self.get("block_size")

    @property
    def budget(self) -> Value:
        return self.get("budget")

    @property
    def verify_width(self) -> Value:
        return self.get("verify_width")

    @property
    def topk(self) -> Value:
        return self.get("topk")

    @property
    def window(self) -> Value:
        return self.get("window")

    @property
    def compact_cache(self) -> Value:
        return self.get("compact_cache")

    @property
    def attention_backend(self) -> Value:
        return self.get("attention_backend")

    @property
    def page_size(self) -> Value:
        return self.get("page_size")

    @property
    def radix_cache(self) -> Value:
        return self.get("radix_cache")

    @property
    def overlap(self) -> Value:
        return self.get("overlap")

    @property
    def cuda_graph(self) -> Value:
        return self.get("cuda_graph")

    @property
    def max_running_requests(self) -> Value:
        return self.get("max_running_requests")

    def to_json(self) -> dict[str, Any]:
        """Known knobs as `{knob: {source: value}}` with the warnings, for the results store."""
        knobs = {
            name: {source: value for source in SOURCES if (value := getattr(reading, source)) is not UNKNOWN}
            for name, reading in self.readings.items()
        }
        return {
            "knobs": {name: known for name, known in knobs.items() if known},
            "warnings": list(self.warnings),
        }


SOURCES: Final[tuple[Source, ...]] = ("asked", "http", "log", "behaviour")


@dataclass(frozen=True, slots=True)
class Mismatch:
    """A knob that is not what was asked; `http` and `log` are `UNKNOWN` where that source says nothing."""

    name: str
    asked: Value
    http: Value
    log: Value
    behaviour: Value = UNKNOWN

    def __str__(self) -> str:
        said = [
            f"{where} says {show(value)}"
            for where, value in (("HTTP", self.http), ("the log", self.log), ("behaviour", self.behaviour))
            if value is not UNKNOWN
        ]
        return f"{self.name}: asked {show(self.asked)}, {', '.join(said) or 'no source confirms it'}"


def show(value: Value) -> str:
    """A value as people read it: `none` for None, `on`/`off` for switches, `?` for unknown."""
    if value is UNKNOWN:
        return "?"
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "on" if value else "off"
    return str(value)


def from_values(source: Source, values: Mapping[str, Value], warnings: Iterable[str] = ()) -> EffectiveConfig:
    """An EffectiveConfig whose knobs all rest on one source."""
    readings = {
        name: _with(Reading(), source, value) for name, value in values.items() if value is not UNKNOWN
    }
    return EffectiveConfig(readings, tuple(warnings))


def merge(*configs: EffectiveConfig) -> EffectiveConfig:
    """One table from several sources; where two give the same source of the same knob, the later one counts."""
    readings: dict[str, Reading] = {}
    warnings: dict[str, None] = {}
    for config in configs:
        for name, reading in config.readings.items():
            joined = readings.get(name, Reading())
            for source in SOURCES:
                value: Value = getattr(reading, source)
                if value is not UNKNOWN:
                    joined = _with(joined, source, value)
            readings[name] = joined
        warnings.update(dict.fromkeys(config.warnings))
    return EffectiveConfig(readings, tuple(warnings))


def compare(asked: EffectiveConfig, seen: EffectiveConfig, *, required: Iterable[str] = ()) -> list[Mismatch]:
    """Knobs that were asked and are not in force, in the table's order.

    A knob counts when some source contradicts what was asked. A knob of `required` counts too when no source says anything about it.
    """
    must = set(required)
    found: list[Mismatch] = []
    for name in sorted(asked.readings, key=_rank):
        want = asked.readings[name].value
        if want is UNKNOWN:
            continue
        got = seen.reading(name)
        said = [value for value in (got.http, got.log, got.behaviour) if value is not UNKNOWN]
        contradicted = any(not _same(want, value) for value in said)
        if contradicted or (not said and name in must):
            found.append(Mismatch(name, want, got.http, got.log, got.behaviour))
    return found


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table asked / HTTP / log / behaviour."""

    name: str
    asked: Value
    http: Value
    log: Value
    behaviour: Value
    ok: bool


def table(asked: EffectiveConfig, seen: EffectiveConfig) -> list[Row]:
    """Every knob that somebody says something about, in a fixed order, with whether it is as asked."""
    wrong = {mismatch.name for mismatch in compare(asked, seen)}
    names = sorted({*asked.readings, *seen.readings}, key=_rank)
    rows = []
    for name in names:
        got = seen.reading(name)
        rows.append(Row(name, asked.get(name), got.http, got.log, got.behaviour, name not in wrong))
    return rows


def _with(reading: Reading, source: Source, value: Value) -> Reading:
    match source:
        case "asked":
            return replace(reading, asked=value)
        case "http":
            return replace(reading, http=value)
        case "log":
            return replace(reading, log=value)
        case "behaviour":
            return replace(reading, behaviour=value)


def _rank(name: str) -> tuple[int, str]:
    return (KNOBS.index(name) if name in KNOBS else len(KNOBS), name)


def _same(want: Value, got: Value) -> bool:
    # True == 1 in Python, but a switch that reads 1 where a count was asked is not what was asked.
    if isinstance(want, bool) != isinstance(got, bool):
        return False
    return want == got


CONDITIONS: Final = (
    "attention_backend",
    "prefill_attention_backend",
    "decode_attention_backend",
    "page_size",
    "radix_cache",
    "overlap",
    "cuda_graph",
    "max_running_requests",
    "mem_fraction",
    "context_length",
    "max_total_tokens",
    "seed",
    "deterministic",
    "incremental_streaming",
)
"""Knobs that a speculative server and its baseline should have alike, or whose difference must be known."""


@dataclass(frozen=True, slots=True)
class Difference:
    """A condition in which two servers differ; `UNKNOWN` where one does not say."""

    name: str
    left: Value
    right: Value

    def __str__(self) -> str:
        return f"{self.name}: {show(self.left)} against {show(self.right)}"


def differences(left: EffectiveConfig, right: EffectiveConfig) -> list[Difference]:
    """Conditions in which two servers differ, in the table's order; what neither says is no difference."""
    found = [Difference(name, left.get(name), right.get(name)) for name in CONDITIONS]
    return [each for each in found if not _same(each.left, each.right)]
