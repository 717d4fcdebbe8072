"""What a user's description of a dialect may say: everything that is wrong with it, in words, before a server is started by it."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from string import Formatter
from typing import Any

from pytest_ddtree.dialects.effective import KNOBS

_TEXTS = ("name", "tree", "chain", "window", "block_size", "baseline", "about")
_TEMPLATES = ("tree", "chain", "window", "block_size")
_TABLES = ("env", "read", "log")
_PLACES = frozenset({"budget", "topk", "window", "block_size", "verify_width"})
_READABLE = ("budget", "topk", "window", "block_size", "verify_width", "tree")


def problems(data: Mapping[str, Any]) -> list[str]:
    """Every mistake in the parsed TOML; empty where a dialect can be made of it."""
    known = {*_TEXTS, *_TABLES, "topk", "verify_width"}
    found = [f"unknown key {key!r}; known are {', '.join(sorted(known))}" for key in data if key not in known]
    found += [f"{key} must be a text" for key in _TEXTS if key in data and not isinstance(data[key], str)]
    found += [
        f"[{key}] must be a table" for key in _TABLES if key in data and not isinstance(data[key], dict)
    ]
    if "tree" not in data and "chain" not in data:
        found.append("neither `tree` nor `chain`: nothing can be asked of this build")
    if "topk" in data and not (isinstance(data["topk"], list) and all(map(_is_whole, data["topk"]))):
        found.append("topk must be a list of whole numbers")
    width = str(data.get("verify_width", "budget + 1")).replace(" ", "")
    if width not in {"budget", "budget+1"} and not width.isdigit():
        found.append(f"verify_width must be 'budget + 1', 'budget' or a number, not {data['verify_width']!r}")
    if found:
        return found
    for key in _TEMPLATES:
        found += _in_words(key, data.get(key, ""))
    found += _in_words("baseline", data.get("baseline", ""), places=frozenset())
    for name, text in data.get("env", {}).items():
        found += (
            _in_template(f"env.{name}", text) if isinstance(text, str) else [f"env.{name} must be a text"]
        )
    for knob, where in data.get("read", {}).items():
        found += _in_field(knob, where)
    for knob, pattern in data.get("log", {}).items():
        found += _in_pattern(knob, pattern)
    return found


def fill(template: str, places: Mapping[str, object]) -> list[str]:
    """The words of a command line with their placeholders filled in."""
    return [word.format_map(places) for word in shlex.split(template)]


def needed(template: str) -> set[str]:
    """The placeholders of a template without mistakes."""
    return {name for name in _names(template) if name in _PLACES}


def _in_words(key: str, text: str, places: frozenset[str] = _PLACES) -> list[str]:
    try:
        words = shlex.split(text)
    except ValueError as error:
        return [f"{key}: cannot be split into arguments: {error}"]
    if not places:
        return []
    return [problem for word in words for problem in _in_template(key, word)]


def _in_template(key: str, text: str) -> list[str]:
    try:
        names = list(_names(text))
    except ValueError as error:
        return [f"{key}: {text!r}: {error}; a brace that is meant is written twice"]
    return [
        f"{key}: unknown placeholder {{{name}}}; known are {', '.join(sorted(_PLACES))}"
        for name in names
        if name not in _PLACES
    ]


def _names(text: str) -> Iterator[str]:
    for _, name, spec, conversion in Formatter().parse(text):
        if name is not None:
            yield name + (f"!{conversion}" if conversion else "") + (f":{spec}" if spec else "")


def _in_field(knob: str, where: object) -> list[str]:
    if knob not in _READABLE:
        return [f"read.{knob}: unknown; known are {', '.join(_READABLE)}"]
    if not isinstance(where, dict) or not isinstance(where.get("field"), str):
        return [f"read.{knob} must be a table with `field`"]
    return [] if _is_whole(where.get("add", 0)) else [f"read.{knob}: add must be a whole number"]


def _in_pattern(knob: str, pattern: object) -> list[str]:
    if knob not in KNOBS:
        return [f"log.{knob}: unknown; known are {', '.join(KNOBS)}"]
    if not isinstance(pattern, str):
        return [f"log.{knob} must be a text"]
    try:
        groups = re.compile(pattern).groups
    except re.error as error:
        return [f"log.{knob}: {error}"]
    return [] if groups == 1 else [f"log.{knob}: needs exactly one group, has {groups}"]


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
