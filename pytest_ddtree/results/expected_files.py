"""The files of expected figures: read with every mistake named, written at once, sorted, in lines that a diff shows well.

    {"schema": 2, "entries": [{KEY, "history": [{SAMPLE}, ...]}, ...]}

A sample has a line with its means, for people, and one with the rounds behind them, which are what is compared. Schema 1 had the rounds in
place of the means, and could not leave one out.
"""

from __future__ import annotations

import fcntl
import json
import math
import os
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any

from pytest_ddtree.errors import Infrastructure
from pytest_ddtree.results.expected import Expected, Key, Sample, Setting, geometric
from pytest_ddtree.results.metrics import METRICS, Values

SCHEMA = 2
"""Version of the files written here; 1 can still be read."""
AGREE = 1e-3
"""A mean may differ from its rounds by that share: both were rounded."""

_KEY = (*(one.name for one in fields(Setting)), "config", "cell")
_WORDS = ("date", "build", "run", "origin")


class ExpectedBroken(Infrastructure):
    """A file of expected figures cannot be read; the text names file and place. It is never rewritten."""


class _Wrong(ValueError):
    """What is wrong with an entry."""


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


def add_expected(path: Path, samples: Mapping[Key, Sample]) -> None:
    """Put a sample at the end of the history of each key, in the files as they are now: another session may have written meanwhile.

    Raises:
        ExpectedBroken: a file was damaged since it was read; nothing is written.
        OSError: the place cannot be written.
    """
    place = path if is_folder(path) else path.parent
    place.mkdir(parents=True, exist_ok=True)
    with _alone(place):
        expected = read_expected(path)
        for key, sample in samples.items():
            expected.add(key, sample)
        write_expected(expected)


def write_expected(expected: Expected) -> None:
    """Write what is there: to the file itself, or into a directory one file a GPU and model. Each file is replaced at once."""
    if not is_folder(expected.path):
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


def is_folder(path: Path) -> bool:
    """Whether a place is a directory of files: what is there decides, else the name."""
    return path.is_dir() if path.exists() else path.suffix != ".json"


def render(entries: Mapping[Key, tuple[Sample, ...]]) -> str:
    """The text of a file."""
    blocks = []
    for key in sorted(entries):
        head = {**{one.name: getattr(key.setting, one.name) for one in fields(Setting)}}
        head |= {"config": key.config, "cell": key.cell}
        rows = ",\n".join(_sample_lines(sample) for sample in entries[key])
        blocks.append(f'  {json.dumps(head)[:-1]}, "history": [\n{rows}\n  ]}}')
    return f'{{\n "schema": {SCHEMA},\n "entries": [\n' + ",\n".join(blocks) + "\n ]\n}\n"


def _sample_lines(sample: Sample) -> str:
    words = {name: getattr(sample, name) for name in _WORDS if getattr(sample, name) is not None}
    means = {name: _digits(mean, 4) for name in METRICS if (mean := sample.mean(name)) is not None}
    # Six digits: more than any clock is worth, fewer than would fill a file.
    rounds = {name: _listed(sample.values[name]) for name in means}
    first = json.dumps({**words, **means})[:-1]
    return f'   {first},\n    "rounds": {json.dumps(rounds)}}}'


def _listed(values: Values) -> list[float | None]:
    return [_digits(values[at], 6) if at in values else None for at in range(max(values) + 1)]


def _digits(value: float, digits: int) -> float:
    return float(f"{value:.{digits}g}")


def _read_file(file: Path) -> dict[Key, tuple[Sample, ...]]:
    try:
        text = file.read_text("utf-8-sig")
        data = json.loads(text)
    except RecursionError:
        raise ExpectedBroken(
            f"{file}: cannot be read: nested too deeply. The file was left as it is."
        ) from None
    except (OSError, ValueError) as error:
        why = _conflict(text) if isinstance(error, json.JSONDecodeError) else ""
        raise ExpectedBroken(f"{file}: cannot be read: {why or error}. The file was left as it is.") from None
    if not isinstance(data, dict) or type(data.get("schema")) is not int or data["schema"] < 1:
        raise ExpectedBroken(f"{file}: no file of expected figures (no `schema`). It was left as it is.")
    if data["schema"] > SCHEMA:
        raise ExpectedBroken(
            f"{file}: schema {data['schema']} is newer than this plugin's {SCHEMA}; upgrade pytest-ddtree"
        )
    if not isinstance(data.get("entries"), list):
        raise ExpectedBroken(
            f"{file}: no file of expected figures (no list `entries`). It was left as it is."
        )
    found: dict[Key, tuple[Sample, ...]] = {}
    for number, entry in enumerate(data["entries"], start=1):
        where = f"entry {number}"
        try:
            _known(entry, (*_KEY, "history"))
            *setting, config, cell = (_word(entry, name) for name in _KEY)
            key = Key(Setting(*setting), config, cell)
            where += f" ({config} {cell})"
            history = _history(entry.get("history"), data["schema"])
        except _Wrong as error:
            raise ExpectedBroken(f"{file}: {where}: {error}. The file was left as it is.") from None
        if key in found:
            raise ExpectedBroken(f"{file}: {where} is there twice; remove one of them")
        found[key] = history
    return found


def _conflict(text: str) -> str:
    """The place of the first mark of a merge conflict, in words; empty without one."""
    for number, line in enumerate(text.splitlines(), start=1):
        if line.startswith(("<<<<<<< ", ">>>>>>> ")) or line == "=======":
            return f"line {number} is the mark of a merge conflict; keep the samples of both sides, the older ones first"
    return ""


def _history(value: Any, schema: int) -> tuple[Sample, ...]:
    if not isinstance(value, list) or not value:
        raise _Wrong("`history` must be a list with at least one sample")
    samples = []
    for number, item in enumerate(value, start=1):
        try:
            samples.append(_sample(item, schema))
        except _Wrong as error:
            raise _Wrong(f"sample {number}: {error}") from None
    return tuple(samples)


def _sample(item: Any, schema: int) -> Sample:
    _known(item, (*_WORDS, *METRICS, *(("rounds",) if schema > 1 else ())))
    rounds = item if schema == 1 else item.get("rounds")
    if schema > 1:
        _known(rounds, tuple(METRICS))
    values = {name: _values(name, rounds[name]) for name in METRICS if name in rounds}
    if not values:
        raise _Wrong(f"none of the figures {', '.join(METRICS)}")
    for name in METRICS if schema > 1 else ():
        if (name in item) != (name in values):
            raise _Wrong(f"{name} must be there twice, as the mean and in `rounds`")
        if name in values:
            _check_mean(name, item[name], values[name])
    optional = {name: None if item.get(name) is None else _word(item, name) for name in ("run", "origin")}
    return Sample(_word(item, "date"), _word(item, "build"), values, **optional)


def _check_mean(name: str, given: Any, values: Values) -> None:
    mean = geometric(values)
    if not _is_figure(given) or abs(given / mean - 1) > AGREE:
        raise _Wrong(
            f"{name} says {given} and its rounds {mean:.4g}: figures are not edited by hand, "
            "--ddtree-update-expected measures them (and --ddtree-accept-drift says why)"
        )


def _values(name: str, given: Any) -> Values:
    if not isinstance(given, list) or any(one is not None and not _is_figure(one) for one in given):
        raise _Wrong(f"{name} must be a list with a positive number for every round, null where it has none")
    values = {number: float(value) for number, value in enumerate(given) if value is not None}
    if not values:
        raise _Wrong(f"{name} has no round with a number")
    return values


def _is_figure(value: Any) -> bool:
    # Digits without end are an integer for JSON, which no float holds.
    return type(value) in (int, float) and 0 < value < 1e300 and math.isfinite(value)


def _known(item: Any, names: Sequence[str]) -> None:
    if not isinstance(item, dict):
        raise _Wrong(f"{json.dumps(item)[:40]} where an object is expected")
    unknown = sorted(set(item) - set(names))
    if unknown:
        raise _Wrong(f"{unknown[0]!r} is not known; there are {', '.join(names)}")


def _word(item: Mapping[str, Any], name: str) -> str:
    value = item.get(name)
    if not isinstance(value, str):
        raise _Wrong(f"`{name}` must be a text")
    return value


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Nobody else who asks writes expected figures in this folder meanwhile."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _write_file(file: Path, entries: Mapping[Key, tuple[Sample, ...]]) -> None:
    # A link stays one: what it points to is replaced.
    file = file.resolve()
    file.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=file.parent, prefix=f".{file.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as stream:
            stream.write(render(entries))
            stream.flush()
            os.fsync(stream.fileno())
        os.chmod(name, file.stat().st_mode & 0o777 if file.exists() else 0o644)
        os.replace(name, file)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def _slug(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:60] or "unknown"
