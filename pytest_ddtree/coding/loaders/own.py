"""The project's own two formats: one TOML file a problem, and one JSON object a line."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final, cast

from pytest_ddtree.coding.loaders.cases import KEYS, read_cases
from pytest_ddtree.coding.loaders.values import REQUEST, Faults
from pytest_ddtree.coding.problems import Mode, Problem

SCHEMA: Final = 1
_TOML_KEYS: Final = frozenset(
    {
        "schema", "task_id", "title", "category", "mode", "entry_point", "prompt", "thinking", "answer",
        "solution", "stub", "cases",
    }
)  # fmt: skip
_JSON_KEYS: Final = frozenset(
    {"task_id", "prompt", "mode", "entry_point", "cases", "solution", "stub", "title", "category"}
)


def from_toml(record: Mapping[str, Any], stem: str) -> Problem:
    """A problem of the built-in set. `stem` is the file's name, which the id must equal. Raises RecordError."""
    faults = Faults()
    if record.get("schema") != SCHEMA:
        faults.add("schema", f"must be {SCHEMA}, not {record.get('schema')!r}")
    faults.unknown_keys(record, _TOML_KEYS)
    if faults.text(record, "task_id") not in ("", stem):
        faults.add("task_id", f"must equal the file's name, {stem!r}")
    texts = {
        key: faults.text(record, key)
        for key in ("title", "category", "thinking", "answer", "solution", "stub")
    }
    if "</think>" in texts["thinking"]:
        faults.add("thinking", "must not hold the closing tag itself")
    problem = _problem(faults, record, literals=True, shape="toml")
    return replace(
        problem,
        title=texts["title"],
        category=texts["category"],
        thinking=texts["thinking"],
        answer=texts["answer"],
        solution=texts["solution"],
        stub=texts["stub"],
    )


def from_json(record: Mapping[str, Any]) -> Problem:
    """A problem of our JSON Lines schema. Raises RecordError."""
    faults = Faults()
    texts = {key: faults.text(record, key, "") for key in ("title", "category", "solution", "stub")}
    problem = _problem(faults, record, literals=False, shape="jsonl")
    extra = {key: value for key, value in record.items() if key not in _JSON_KEYS}
    return replace(
        problem,
        title=texts["title"],
        category=texts["category"],
        solution=texts["solution"],
        stub=texts["stub"],
        extra=extra,
    )


def _problem(faults: Faults, record: Mapping[str, Any], *, literals: bool, shape: str) -> Problem:
    task_id = faults.text(record, "task_id")
    prompt = faults.text(record, "prompt")
    mode = record.get("mode", "" if literals else _guessed_mode(record))
    entry_point = faults.text(record, "entry_point", "")
    if not isinstance(mode, str) or mode not in KEYS:
        faults.add("mode", f"must be one of {', '.join(KEYS)}, not {mode!r}")
        faults.raise_if_any()
    if mode == "stdin":
        if entry_point:
            faults.add("entry_point", "must be empty for programs that read standard input")
    elif not entry_point.isidentifier():
        faults.add("entry_point", f"must be the name of a function or class, not {entry_point!r}")
    cases = read_cases(faults, record, cast(Mode, mode), literals=literals)
    for key in ("solution", "stub"):
        source = record.get(key)
        if isinstance(source, str) and source.strip():
            faults.defines(key, source, entry_point)
    faults.raise_if_any()
    return Problem(
        task_id=task_id,
        mode=cast(Mode, mode),
        entry_point=entry_point,
        prompt=prompt,
        question=prompt.strip() if literals else f"{prompt.strip()}\n\n{REQUEST}",
        cases=cases,
        shape=shape,
    )


def _guessed_mode(record: Mapping[str, Any]) -> str:
    """JSON Lines may leave the mode out: the keys of the first case tell it."""
    cases = record.get("cases")
    first = cases[0] if isinstance(cases, list) and cases and isinstance(cases[0], dict) else {}
    if "stdin" in first:
        return "stdin"
    return "class" if "calls" in first or "calls_py" in first else "function"
