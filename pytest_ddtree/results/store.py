"""The store: JSON Lines, appended and fsynced record by record, so that nothing measured is lost to a crash.

A line is a record `{"schema": 1, "kind": ..., ...}`. Only the last line can be torn (the process or the machine died while it was
written); it is cut off and said. A broken line anywhere else means that somebody edited or damaged the file: it is reported with
file and line and never rewritten.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import orjson

from pytest_ddtree.errors import Infrastructure, NotKept, not_kept

SCHEMA = 2
"""Version of the records written here; every older one can still be read. 1: rounds without `build`, `start_no`, `at`, `again`, and no
fingerprints."""


class StoreCorrupt(Infrastructure):
    """A stored file holds what this plugin never wrote; the text names file, line and cause."""


@dataclass(frozen=True, slots=True)
class Stored:
    """What a file holds. `torn` is the number of bytes of an unfinished last line, 0 when the file is whole."""

    records: tuple[Mapping[str, Any], ...]
    whole_bytes: int
    torn: int


def parse(data: bytes, name: str) -> Stored:
    """The records of a file's bytes.

    Raises:
        StoreCorrupt: a line other than an unfinished last one is no record.
    """
    end = data.rfind(b"\n") + 1
    records = []
    for number, line in enumerate(data[:end].split(b"\n")[:-1], start=1):
        try:
            record = orjson.loads(line)
        except orjson.JSONDecodeError as error:
            raise StoreCorrupt(
                f"{name}, line {number}: no JSON ({error}). The file was left as it is; move it away to start anew."
            ) from None
        if not isinstance(record, dict) or "kind" not in record or not isinstance(record.get("schema"), int):
            raise StoreCorrupt(
                f"{name}, line {number}: a record without `kind` and `schema`. The file was left as it is."
            )
        if record["schema"] > SCHEMA:
            raise StoreCorrupt(
                f"{name}, line {number}: schema {record['schema']} is newer than this plugin's {SCHEMA}; upgrade pytest-ddtree to read it"
            )
        records.append(record)
    return Stored(tuple(records), end, len(data) - end)


class Store:
    """An open file of records. One process writes it (an exclusive lock says so)."""

    def __init__(self, path: Path) -> None:
        """Open or create `path`; an unfinished last line is cut off (`torn` says how many bytes).

        Raises:
            StoreCorrupt: the file is damaged elsewhere, or another process is writing it.
            NotKept: there is no room for it, or no right to write it.
        """
        self.path = path
        self._failed: NotKept | None = None
        try:
            stored = self._begin(path)
        except OSError as error:
            raise not_kept(path, error) from None
        self.records = list(stored.records)
        self.torn = stored.torn
        self._size = stored.whole_bytes
        self._open = True

    def _begin(self, path: Path) -> Stored:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        try:
            self._lock()
            stored = parse(path.read_bytes(), str(path))
            if stored.torn:
                os.ftruncate(self._file, stored.whole_bytes)
                os.fsync(self._file)
            _fsync_directory(path.parent)
        except BaseException:
            os.close(self._file)
            raise
        return stored

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def append(self, kind: str, **fields: Any) -> None:
        """Write one record and wait until the disk has it.

        Raises:
            NotKept: the disk took it not, or not an earlier one; the file ends with the last whole record.
        """
        if self._failed is not None:
            raise NotKept(str(self._failed))
        line = _dumped({"schema": SCHEMA, "kind": kind, **fields}) + b"\n"
        view = memoryview(line)
        try:
            while view:
                view = view[os.write(self._file, view) :]
            os.fsync(self._file)
        except OSError as error:
            with suppress(OSError):
                os.ftruncate(self._file, self._size)
            self._failed = not_kept(self.path, error)
            raise self._failed from None
        self._size += len(line)
        # As a reader of the file finds it: lists for tuples, null for what is no number.
        self.records.append(orjson.loads(line))

    def close(self) -> None:
        """Close the file. May be called twice."""
        if self._open:
            self._open = False
            os.close(self._file)

    def _lock(self) -> None:
        lock(self._file, self.path)


def _dumped(record: Mapping[str, Any]) -> bytes:
    """A record as JSON. Half letters (an answer's, a file name's) are written as escapes: a run is not lost for one."""
    try:
        return orjson.dumps(record)
    except TypeError:
        return orjson.dumps(_escaped(record))


def _escaped(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode(errors="backslashreplace").decode()
    if isinstance(value, Mapping):
        return {_escaped(name): _escaped(item) for name, item in value.items()}
    return [_escaped(item) for item in value] if isinstance(value, list | tuple) else value


def lock(descriptor: int, path: Path) -> None:
    """Keep a results file for this process, until the descriptor is closed. Raises StoreCorrupt where another one has it."""
    import fcntl

    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise StoreCorrupt(
            f"{path}: another process is writing it; two sessions cannot share a results file"
        ) from None


def refuse_in_use(path: Path) -> None:
    """Raise StoreCorrupt where another process writes a results file now."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        lock(descriptor, path)
    finally:
        os.close(descriptor)


def _fsync_directory(directory: Path) -> None:
    """A new file's name is on the disk only when its directory is."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
