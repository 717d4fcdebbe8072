"""Records of problem files with the lines they stand on. The only module here that opens files."""

from __future__ import annotations

import gzip
import json
import re
import tomllib
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from pytest_ddtree.coding.loaders.values import Place
from pytest_ddtree.coding.problems import Flaw

_SUFFIXES: Final = (".toml", ".jsonl", ".json")
_CASE_HEADER: Final = re.compile(r"^\s*\[\[\s*cases\s*\]\]", re.MULTILINE)
_BETWEEN: Final = re.compile(r"[\s,]*")


@dataclass(frozen=True, slots=True)
class Record:
    """One object of a file. `line` counts from 1; `text` is the TOML source, for the lines of faults."""

    path: Path
    line: int
    kind: Literal["toml", "json"]
    value: dict[str, Any]
    text: str = ""

    def line_of(self, place: Place) -> int:
        """The line of a key, as far as it can be told; the record's own line otherwise."""
        if self.kind == "json":
            return self.line
        start, end = 0, len(self.text)
        headers = [match.start() for match in _CASE_HEADER.finditer(self.text)]
        key = place if isinstance(place, str) else place[1]
        if isinstance(place, str):
            end = headers[0] if headers else end
        elif place[0] < len(headers):
            start = headers[place[0]]
            end = headers[place[0] + 1] if place[0] + 1 < len(headers) else end
        found = re.compile(rf"^[ \t]*{re.escape(key)}\s*=", re.MULTILINE).search(self.text, start, end)
        return self.text.count("\n", 0, found.start() if found else start) + 1


def expand(path: Path) -> Iterator[Path | Flaw]:
    """A file as it is, a folder as its TOML files in order."""
    try:
        folder, exists = path.is_dir(), path.exists()
        files = sorted(path.glob("*.toml")) if folder else []
    except OSError as error:
        yield _unreadable(path, error)
        return
    if folder:
        yield from files
        if not files:
            yield Flaw(path, None, "the folder holds no .toml files")
    elif exists:
        yield path
    else:
        yield Flaw(path, None, "there is no such file")


def read_records(path: Path) -> Iterator[Record | Flaw]:
    """The records of a .toml, .jsonl or .json file, gzipped or not, and what is wrong with it."""
    name = path.name.removesuffix(".gz")
    if not name.endswith(_SUFFIXES):
        yield Flaw(path, None, f"unknown kind of file; known: {', '.join(_SUFFIXES)}, each also with .gz")
        return
    try:
        raw = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        yield Flaw(path, raw.count(b"\n", 0, error.start) + 1, "is not UTF-8")
        return
    except (OSError, EOFError, zlib.error) as error:
        yield _unreadable(path, error)
        return
    if name.endswith(".toml"):
        yield _toml(path, text)
    elif name.endswith(".jsonl"):
        yield from _json_lines(path, text)
    else:
        yield from _json_array(path, text)


def _unreadable(path: Path, error: Exception) -> Flaw:
    return Flaw(path, None, f"cannot be read: {error}")


def _toml(path: Path, text: str) -> Record | Flaw:
    try:
        return Record(path, 1, "toml", tomllib.loads(text), text.replace("\r\n", "\n"))
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        at = re.search(r"at line (\d+)", str(error))
        return Flaw(path, int(at[1]) if at else None, f"is no valid TOML: {error}")


def _json_lines(path: Path, text: str) -> Iterator[Record | Flaw]:
    empty = True
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            empty = False
            try:
                yield _object(path, number, json.loads(line))
            except (ValueError, RecursionError) as error:
                yield Flaw(path, number, f"is no valid JSON: {error}")
    if empty:
        yield Flaw(path, None, "holds no problems")


def _json_array(path: Path, text: str) -> Iterator[Record | Flaw]:
    """An array of objects (or one object), read element by element so that each keeps its line."""
    decoder = json.JSONDecoder()
    start = len(text) - len(text.lstrip())
    array = text.startswith("[", start)
    position = start + array
    line, counted = 1, 0
    empty = True
    while True:
        position = _skip(text, position)
        line, counted = line + text.count("\n", counted, position), position
        if array and text[position : position + 1] == "]":
            position = _skip(text, position + 1)
            break
        if position >= len(text):
            if array:
                yield Flaw(path, line, "the array has no end: the file was cut off")
            break
        try:
            value, position = decoder.raw_decode(text, position)
        except (ValueError, RecursionError) as error:
            yield Flaw(path, line, f"is no valid JSON: {error}")
            return
        empty = False
        yield _object(path, line, value)
        if not array:
            position = _skip(text, position)
            break
    line += text.count("\n", counted, position)
    if position < len(text):
        yield Flaw(
            path, line, "something stands behind the JSON value; a file of one object a line ends in .jsonl"
        )
    elif empty:
        yield Flaw(path, None, "holds no problems")


def _skip(text: str, position: int) -> int:
    match = _BETWEEN.match(text, position)
    return position if match is None else match.end()


def _object(path: Path, line: int, value: Any) -> Record | Flaw:
    if isinstance(value, dict):
        return Record(path, line, "json", value)
    return Flaw(path, line, f"must be an object with the fields of a problem, not {type(value).__name__}")
