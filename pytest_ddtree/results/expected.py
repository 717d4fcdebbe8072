"""Expected figures, keyed by all that must agree before figures may be compared. Pure; their files: `expected_files`.

An entry has a key and a history of samples, the last one being what is expected. The history is kept because
losses add up: five accepted losses of 2 % are a loss of 10 %, seen against the best of the last samples.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from pytest_ddtree.results.metrics import METRICS, Values
from pytest_ddtree.results.scale import signed
from pytest_ddtree.results.tolerance import Start

KEPT = 20
"""Samples of an entry that are kept."""
DRIFT_OVER = 10
"""Drift is seen against the best of this many samples."""
DRIFT = "best of the last samples"
"""What a gate of drift says that it compares with."""


@dataclass(frozen=True, slots=True, order=True)
class Setting:
    """What must agree before two figures may be compared: hardware, model, drafter and what the prompts are made from."""

    gpu: str
    model: str
    draft: str
    workload: str

    def differences(self, other: Setting) -> str:
        """How `other` differs, in words."""
        return ", ".join(
            f"{name} {getattr(other, name)} instead of {getattr(self, name)}"
            for name in self.__dataclass_fields__
            if getattr(self, name) != getattr(other, name)
        )


@dataclass(frozen=True, slots=True, order=True)
class Key:
    """One cell of one config in one setting."""

    setting: Setting
    config: str
    cell: str


@dataclass(frozen=True, slots=True)
class Sample:
    """The figures of one session: metric -> value of each round (by number), and the build they came from."""

    date: str
    build: str
    values: Mapping[str, Values]
    origin: str | None = None
    """Why earlier samples no longer count for drift; None: they do."""
    run: str | None = None
    """Name of the stored run that measured them; None in old files."""

    def mean(self, metric: str) -> float | None:
        """Geometric mean of a metric, None where it is not there."""
        values = self.values.get(metric)
        if not values:
            return None
        return geometric(values)


@dataclass(slots=True)
class Expected:
    """All expected figures, however many files they come from."""

    path: Path
    entries: dict[Key, tuple[Sample, ...]] = field(default_factory=dict)

    def last(self, key: Key) -> Sample | None:
        """What is expected of a cell."""
        history = self.entries.get(key, ())
        return history[-1] if history else None

    def best(self, key: Key, metric: str) -> Sample | None:
        """The best of the last samples that still count for drift, the last one excluded; None if there is none."""
        counted: list[Sample] = []
        for sample in reversed(self.entries.get(key, ())[-DRIFT_OVER:]):
            counted.append(sample)
            if sample.origin is not None:
                break
        known = [(mean, sample) for sample in counted[1:] if (mean := sample.mean(metric)) is not None]
        if not known:
            return None
        choose: Callable[..., tuple[float, Sample]] = max if METRICS[metric].higher_is_better else min
        return choose(known, key=lambda pair: pair[0])[1]

    def starts(self, key: Key, metric: str) -> list[Start]:
        """What every sample says of one metric: each comes from a start of its own."""
        return [
            Start(sample.build, values, sample.run)
            for sample in self.entries.get(key, ())
            if (values := sample.values.get(metric))
        ]

    def add(self, key: Key, sample: Sample) -> None:
        """Put a sample at the end of an entry's history; the oldest go when there are too many."""
        self.entries[key] = (*self.entries.get(key, ()), sample)[-KEPT:]

    def elsewhere(self, key: Key) -> list[Setting]:
        """Other settings that have this config and cell: shown, never compared with."""
        return sorted(
            {
                other.setting
                for other in self.entries
                if (other.config, other.cell) == (key.config, key.cell) and other.setting != key.setting
            }
        )

    def orphans(self, setting: Setting, there: Iterable[tuple[str, str]]) -> list[Key]:
        """Entries of this setting whose (config id, cell id) is no longer in the grid."""
        exists = set(there)
        return sorted(
            key for key in self.entries if key.setting == setting and (key.config, key.cell) not in exists
        )


def missing_text(expected: Expected, key: Key, arguments: Sequence[str]) -> str:
    """Why a cell without expected figures fails, and the exact command that would record them.

    `arguments` are pytest's own, as they were given.
    """
    import shlex

    words = [word for word in arguments if word not in ("--ddtree-update-new", "--ddtree-update-expected")]
    command = shlex.join(["pytest", *words, "--ddtree-update-new"])
    lines = [
        f"{key.config} {key.cell}: no expected figures in {expected.path} for this GPU, model and workload, so nothing can be judged.",
        f"Record them with\n  {command}",
    ]
    lines.extend(
        f"There are figures of another setting, which are not compared: {key.setting.differences(other)}"
        for other in expected.elsewhere(key)
    )
    return "\n".join(lines)


RECORDED_SHOWN = 12


def recorded_lines(expected: Expected, recorded: Mapping[Key, Sample]) -> list[str]:
    """What became expected, a line a cell with its change, for the report. `expected` holds the recorded samples too."""
    lines = [
        f"recorded as expected in {expected.path}: {len(recorded)} cell{'s' if len(recorded) > 1 else ''}"
    ]
    for key, sample in list(recorded.items())[:RECORDED_SHOWN]:
        before = expected.entries[key][-2] if len(expected.entries[key]) > 1 else None
        shown = []
        for name, metric in METRICS.items():
            now = sample.mean(name)
            if now is None:
                continue
            was = None if before is None else before.mean(name)
            change = "" if was is None else f" ({signed(now / was - 1)})"
            shown.append(f"{name} {now:.{metric.digits}f}{change}")
        since = "new" if before is None else f"against {before.date}"
        lines.append(f"  {key.config} {key.cell}, {since}: {', '.join(shown)}")
    if len(recorded) > RECORDED_SHOWN:
        lines.append(f"  and {len(recorded) - RECORDED_SHOWN} more")
    return lines


def accept_drift(sample: Sample, reason: str) -> Sample:
    """The sample as a new origin: earlier ones no longer count for drift, and the file says why."""
    return replace(sample, origin=reason)


def geometric(values: Values) -> float:
    """Geometric mean of the figures of the rounds."""
    return math.exp(math.fsum(math.log(value) for value in values.values()) / len(values))
