"""What options take: one parser a kind of value, each of which refuses with a text that says what is allowed."""

from __future__ import annotations

import argparse
import math
import os
import re
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

from pytest_ddtree.axes import WorkloadChoice, parse_workload
from pytest_ddtree.gpu_groups import Group
from pytest_ddtree.gpu_groups import parse as parse_groups


class OptionError(ValueError):
    """A value that an option does not take; the text names the option, the value and what is allowed."""


Parse = Callable[[str], Any]
T = TypeVar("T")


def writable(text: str) -> None:
    """Refuse text that no record and no report can hold, which are UTF-8: bytes of the command line that were no letters.

    It is refused, not escaped: what is written down must be the name that it was, for `--ddtree-resume` and the commands of the reports.
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        coding = sys.getfilesystemencoding()
        if coding.replace("-", "").lower() == "utf8":
            raise OptionError(
                "is no UTF-8, as records and reports are; take another name (a symbolic link will do)"
            ) from None
        raise OptionError(f"cannot be read by a Python whose locale is {coding}; set PYTHONUTF8=1") from None


def reachable(path: str) -> None:
    """Refuse a path whose letters the file system's encoding does not have, or that became one without letters (`~`)."""
    writable(path)
    try:
        os.fsencode(path)
    except UnicodeEncodeError:
        coding = sys.getfilesystemencoding()
        raise OptionError(f"is no path for a Python whose locale is {coding}; set PYTHONUTF8=1") from None


def one_of(*allowed: str) -> Parse:
    def parse(text: str) -> str:
        if text not in allowed:
            raise OptionError(f"takes one of {', '.join(allowed)}")
        return text

    return parse


def _int(text: str, low: int, high: int | None = None) -> int:
    allowed = f"a whole number from {low}" + ("" if high is None else f" to {high}")
    if not re.fullmatch(r"[+-]?[0-9]{1,18}", text.strip()):
        raise OptionError(f"takes {allowed}")
    value = int(text.strip())
    if value < low or (high is not None and value > high):
        raise OptionError(f"takes {allowed}")
    return value


def whole(low: int, high: int | None = None) -> Parse:
    return lambda text: _int(text, low, high)


def _float(text: str, low: float, high: float, *, open_low: bool = False) -> float:
    allowed = f"a number from {low:g} to {high:g}" + (f", {low:g} excluded" if open_low else "")
    try:
        value = float(text)
    except ValueError:
        raise OptionError(f"takes {allowed}") from None
    if math.isnan(value) or value < low or value > high or (open_low and value == low):
        raise OptionError(f"takes {allowed}")
    return value


def number(low: float, high: float, *, open_low: bool = False) -> Parse:
    return lambda text: _float(text, low, high, open_low=open_low)


def list_of(item: Parse, what: str) -> Parse:
    def parse(text: str) -> tuple[Any, ...]:
        parts = [part.strip() for part in text.split(",")]
        if parts == [""]:
            raise OptionError(f"is empty; it takes {what}, separated by commas")
        if "" in parts:
            raise OptionError(f"has an empty item; it takes {what}, separated by commas")
        values = [item(part) for part in parts]
        seen: set[Any] = set()
        for value, part in zip(values, parts, strict=True):
            if value in seen:
                raise OptionError(f"names {part} twice")
            seen.add(value)
        return tuple(values)

    return parse


def budget(text: str) -> int | str:
    if text == "chain":
        return text
    try:
        return _int(text, 1, 4096)
    except OptionError:
        raise OptionError("takes whole numbers from 1 to 4096 (nodes without the root) or `chain`") from None


def window(text: str) -> int | None:
    if text == "none":
        return None
    try:
        return _int(text, 1)
    except OptionError:
        raise OptionError("takes whole numbers of tokens from 1, or `none` for the full context") from None


def block_size(text: str) -> int | None:
    if text == "draft":
        return None
    try:
        return _int(text, 2, 1024)
    except OptionError:
        raise OptionError(
            "takes whole numbers from 2 to 1024, or `draft` for what the draft checkpoint says"
        ) from None


def shell_words(text: str) -> tuple[str, ...]:
    try:
        return tuple(shlex.split(text))
    except ValueError as error:
        raise OptionError(f"cannot be split into arguments: {error}") from None


def port(text: str) -> int:
    if not text.isascii() or not text.isdigit() or not 1 <= int(text) <= 65535:
        raise OptionError(f"takes a port, a number from 1 to 65535, not {text!r}")
    return int(text)


def server_words(text: str) -> tuple[str, ...]:
    """Arguments of a server; what could be no port is refused before anything is started with it."""
    words = shell_words(text)
    for place, word in enumerate(words):
        name, equals, value = word.partition("=")
        if re.fullmatch(r"--([a-z-]+-)?port", name):
            if not equals:
                value = words[place + 1] if place + 1 < len(words) else ""
            try:
                port(value)
            except OptionError as error:
                raise OptionError(f"{name} {error}") from None
    return words


def argument(parse: Callable[[str], T]) -> Callable[[str], T]:
    """A parser of option values as a type for argparse, which then says what is wrong in the same words."""

    def parsed(text: str) -> T:
        try:
            return parse(text)
        except OptionError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return parsed


def url(text: str) -> str:
    if not re.match(r"https?://[^/\s]+", text):
        raise OptionError("takes a URL that begins with http:// or https://")
    try:
        parts = urlsplit(text)
        _ = parts.port
    except ValueError as error:
        raise OptionError(f"takes a URL with a host and a port: {error}") from None
    if not parts.hostname or parts.port == 0:
        raise OptionError("takes a URL with a host, such as http://127.0.0.1:30000")
    return text.rstrip("/")


def urls(text: str) -> tuple[str, ...]:
    """One URL a line: a repeated option is joined with newlines."""
    urls = tuple(url(line.strip()) for line in text.splitlines() if line.strip())
    if not urls:
        raise OptionError("takes a URL that begins with http:// or https://")
    if len(set(urls)) < len(urls):
        raise OptionError("names a URL twice")
    return urls


def prefixes(text: str) -> tuple[tuple[str, ...], ...]:
    """Shell words, one launch prefix a line."""
    return tuple(shell_words(line) for line in text.splitlines() if line.strip())


def groups(text: str) -> tuple[Group, ...]:
    try:
        return parse_groups(text)
    except ValueError as error:
        raise OptionError(str(error)) from None


def group(text: str) -> Group:
    found = groups(text)
    if len(found) != 1:
        raise OptionError("takes one group of GPUs, such as 2,3")
    return found[0]


def path(text: str) -> Path:
    if not text.strip() or "\0" in text:
        raise OptionError("takes a path")
    try:
        return Path(text).expanduser()
    except RuntimeError:
        raise OptionError("takes a path; the user behind ~ has no home directory here") from None


def paths(text: str) -> tuple[Path, ...]:
    """One path a line: a repeated option is joined with newlines, and an ini value may have several lines."""
    paths = tuple(path(line.strip()) for line in text.splitlines() if line.strip())
    if not paths:
        raise OptionError("takes a path")
    for one in paths:
        if not one.exists():
            raise OptionError(f"there is nothing at {one}")
    return paths


def lines(text: str) -> tuple[str, ...]:
    """One item a line, or between semicolons."""
    items = tuple(part.strip() for line in text.splitlines() for part in line.split(";") if part.strip())
    if not items:
        raise OptionError("is empty")
    return items


def nonempty(text: str) -> str:
    if not text.strip():
        raise OptionError("is empty")
    return text


def flag(text: str) -> bool:
    lowered = text.strip().lower()
    if lowered in {"true", "1", "yes", "on"}:
        return True
    if lowered in {"false", "0", "no", "off"}:
        return False
    raise OptionError("takes true or false")


LONGEST = 10_000 * 3600.0
"""Seconds of the longest time: what is longer was mistyped, and clocks of the system refuse much longer ones."""

_SECONDS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0}


def duration(text: str) -> float:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smh]?)", text.strip())
    seconds = 0.0 if match is None else float(match[1]) * _SECONDS[match[2]]
    if not 0 < seconds <= LONGEST:
        raise OptionError("takes a time such as 90, 90s, 45m or 2h, up to 10000h")
    return seconds


def said_by(parse: Parse) -> Parse:
    """A parser that refuses with ValueError, as one that refuses with OptionError."""

    def parse_or_refuse(text: str) -> Any:
        try:
            return parse(text)
        except (ValueError, OSError, RuntimeError) as error:
            raise OptionError(str(error)) from None

    return parse_or_refuse


def workloads(text: str) -> tuple[WorkloadChoice, ...]:
    choices: tuple[WorkloadChoice, ...] = list_of(said_by(parse_workload), "workload classes or files")(text)
    names = [choice.name for choice in choices]
    for name in names:
        if names.count(name) > 1:
            raise OptionError(f"has two workloads named {name}: name the files differently")
    return choices


def gap_min(text: str) -> float | None:
    return None if text == "auto" else _float(text, 0.0, 100.0, open_low=True)
