"""Expected figures that can be committed: small, sorted, one line a sample, keyed by all that must agree before figures may be compared.

A file holds entries; an entry has a key and a history of samples, the last one being what is expected. The history is kept because
losses add up: five accepted losses of 2 % are a loss of 10 %, seen against the best of the last samples.
"""

from __future__ import annotations

import json
import math
import os
import re
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count, takewhile
from pathlib import Path
from typing import Any

from pytest_ddtree.errors import Infrastructure
from pytest_ddtree.results.metrics import METRICS, Values

SCHEMA = 1
KEPT = 20
"""Samples of an entry that are kept."""
DRIFT_OVER = 10
"""Drift is seen against the best of this many samples."""


class ExpectedBroken(Infrastructure):
    """A file of expected figures cannot be read; the text names file and place. It is never rewritten."""


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

    def mean(self, metric: str) -> float | None:
        """Geometric mean of a metric, None where it is not there."""
        values = self.values.get(metric)
        if not values:
            return None
        return math.exp(math.fsum(math.log(value) for value in values.values()) / len(values))


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

    def starts(self, key: Key, metric: str) -> list[tuple[str, float]]:
        """(build, figure) of every sample: each comes from a start of its own."""
        return [
            (sample.build, mean)
            for sample in self.entries.get(key, ())
            if (mean := sample.mean(metric)) is not None
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


def read_expected(path: Path) -> Expected:
    """The figures of a file, or of every `*.json` under a directory; empty where there is nothing yet.

    Raises:
        ExpectedBroken: a file that this plugin did not write, or a newer version of it.
    """
    expected = Expected(path)
    files = sorted(path.rglob("*.json")) if path.is_dir() else [path] if path.exists() else []
    for file in files:
        for key, history in _read_file(file).items():
            if key in expected.entries:
                raise ExpectedBroken(
                    f"{file}: {key.config} {key.cell} is in another file of {path} too; remove one of them"
                )
            expected.entries[key] = history
    return expected


def write_expected(expected: Expected) -> None:
    """Write what is there: to the file itself, or into a directory one file a GPU and model. Each file is replaced at once."""
    if expected.path.suffix == ".json":
        _write_file(expected.path, expected.entries)
        return
    files: dict[Path, dict[Key, tuple[Sample, ...]]] = {}
    for key, history in expected.entries.items():
        name = f"{_slug(key.setting.gpu)}--{_slug(key.setting.model)}.json"
        files.setdefault(expected.path / name, {})[key] = history
    # A key has one home: what an older layout kept elsewhere moves.
    for stale in set(expected.path.rglob("*.json")) - set(files):
        if _read_file(stale):
            stale.unlink()
    for file, entries in files.items():
        _write_file(file, entries)


def accept_drift(sample: Sample, reason: str) -> Sample:
    """The sample as a new origin: earlier ones no longer count for drift, and the file says why."""
    return replace(sample, origin=reason)


def _read_file(file: Path) -> dict[Key, tuple[Sample, ...]]:
    try:
        data = json.loads(file.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise ExpectedBroken(f"{file}: cannot be read: {error}. The file was left as it is.") from None
    if not isinstance(data, dict) or not isinstance(data.get("schema"), int):
        raise ExpectedBroken(f"{file}: no file of expected figures (no `schema`). It was left as it is.")
    if data["schema"] > SCHEMA:
        raise ExpectedBroken(
            f"{file}: schema {data['schema']} is newer than this plugin's {SCHEMA}; upgrade pytest-ddtree"
        )
    found: dict[Key, tuple[Sample, ...]] = {}
    for number, entry in enumerate(data.get("entries", []), start=1):
        try:
            setting = Setting(*(str(entry[name]) for name in Setting.__dataclass_fields__))
            key = Key(setting, str(entry["config"]), str(entry["cell"]))
            history = tuple(_sample(item) for item in entry["history"])
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ExpectedBroken(
                f"{file}: entry {number} cannot be read ({type(error).__name__}: {error}). It was left as it is."
            ) from None
        if key in found:
            raise ExpectedBroken(f"{file}: entry {number}: {key.config} {key.cell} is there twice")
        found[key] = history
    return found


def _sample(item: Mapping[str, Any]) -> Sample:
    values: dict[str, Values] = {}
    for name in METRICS:
        if name in item:
            if not isinstance(item[name], list) or None in item[name]:
                raise ValueError(f"{name} must be a list with a number for every round")
            values[name] = {number: float(value) for number, value in enumerate(item[name])}
            if any(not math.isfinite(value) or value <= 0 for value in values[name].values()):
                raise ValueError(f"{name} must be positive")
    return Sample(str(item["date"]), str(item["build"]), values, item.get("origin"))


def render(entries: Mapping[Key, tuple[Sample, ...]]) -> str:
    """The text of a file: sorted, one line a sample, so that a diff shows what changed."""
    blocks = []
    for key in sorted(entries):
        head = {
            **{name: getattr(key.setting, name) for name in Setting.__dataclass_fields__},
            "config": key.config,
            "cell": key.cell,
        }
        rows = ",\n".join("   " + json.dumps(_sample_json(sample)) for sample in entries[key])
        blocks.append(f'  {json.dumps(head)[:-1]}, "history": [\n{rows}\n  ]}}')
    return f'{{\n "schema": {SCHEMA},\n "entries": [\n' + ",\n".join(blocks) + "\n ]\n}\n"


def _sample_json(sample: Sample) -> dict[str, Any]:
    item: dict[str, Any] = {"date": sample.date, "build": sample.build}
    if sample.origin is not None:
        item["origin"] = sample.origin
    for name in METRICS:
        values = sample.values.get(name)
        if values:
            # Six digits: more than any clock is worth, fewer than would fill a diff.
            unbroken = takewhile(values.__contains__, count())
            item[name] = [float(f"{values[number]:.6g}") for number in unbroken]
    return item


def _write_file(file: Path, entries: Mapping[Key, tuple[Sample, ...]]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=file.parent, prefix=f".{file.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as stream:
            stream.write(render(entries))
            stream.flush()
            os.fsync(stream.fileno())
        os.chmod(name, 0o644)
        os.replace(name, file)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def _slug(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:60] or "unknown"
