"""Files to problems: which format each record has, duplicates, subsets, and all faults at once."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final

from pytest_ddtree.coding.loaders.evalplus import from_evalplus
from pytest_ddtree.coding.loaders.files import Record, expand, read_records
from pytest_ddtree.coding.loaders.humaneval import from_humaneval
from pytest_ddtree.coding.loaders.livecodebench import from_livecodebench
from pytest_ddtree.coding.loaders.mbpp import from_mbpp
from pytest_ddtree.coding.loaders.own import from_json, from_toml
from pytest_ddtree.coding.loaders.values import RecordError
from pytest_ddtree.coding.problems import Flaw, Problem, ProblemFilesError

#: Fields that tell a format, in the order in which they are tried.
_SHAPES: Final[Sequence[tuple[frozenset[str], Callable[[Mapping[str, Any]], Problem]]]] = (
    (frozenset({"cases"}), from_json),
    (frozenset({"question_content"}), from_livecodebench),
    (frozenset({"base_input", "entry_point"}), from_evalplus),
    (frozenset({"plus_input", "entry_point"}), from_evalplus),
    (frozenset({"test", "entry_point"}), from_humaneval),
    (frozenset({"test_list"}), from_mbpp),
)


def load_problems(
    paths: Iterable[Path | str], *, ids: Sequence[str] | None = None, limit: int | None = None
) -> tuple[Problem, ...]:
    """The problems of some files, in the order of the files and of the records in them.

    A folder stands for the TOML files in it. `ids` keeps the problems whose id equals or matches (``*``, ``?``)
    one of the patterns; `limit` keeps the first so many of those. Raises ProblemFilesError with everything
    that is wrong with the files, with patterns that match nothing, and with ids that occur twice.
    """
    files = [Path(path) for path in paths]
    problems: list[Problem] = []
    flaws: list[Flaw] = []
    where: dict[str, str] = {}
    for path in files:
        for file in expand(path):
            for record in [file] if isinstance(file, Flaw) else read_records(file):
                if isinstance(record, Flaw):
                    flaws.append(record)
                    continue
                problem = _problem(record, flaws)
                if problem is None:
                    continue
                if problem.task_id in where:
                    message = (
                        f"task_id {problem.task_id!r} occurs a second time; first at {where[problem.task_id]}"
                    )
                    flaws.append(Flaw(record.path, record.line_of("task_id"), message))
                    continue
                where[problem.task_id] = problem.origin
                problems.append(problem)
    if not flaws and ids is not None:
        problems = _selected(problems, ids, files, flaws)
    if limit is not None and limit < 1:
        raise ValueError(f"a limit of {limit} leaves no problems")
    if flaws:
        raise ProblemFilesError(flaws)
    return tuple(problems[:limit])


def _problem(record: Record, flaws: list[Flaw]) -> Problem | None:
    try:
        if record.kind == "toml":
            problem = from_toml(record.value, record.path.name.removesuffix(".gz").removesuffix(".toml"))
        else:
            problem = _converter(record.value)(record.value)
    except RecordError as error:
        name = record.value.get("task_id", record.value.get("question_id"))
        prefix = f"{name}: " if isinstance(name, str) and record.kind == "json" else ""
        flaws.extend(Flaw(record.path, record.line_of(place), prefix + text) for place, text in error.faults)
        return None
    if not problem.task_id.isprintable():
        message = f"task_id: holds characters that cannot be shown: {problem.task_id!r}"
        flaws.append(Flaw(record.path, record.line_of("task_id"), message))
        return None
    return replace(problem, origin=f"{record.path}:{record.line}")


def _converter(record: Mapping[str, Any]) -> Callable[[Mapping[str, Any]], Problem]:
    for fields, converter in _SHAPES:
        if fields <= record.keys():
            return converter
    keys = ", ".join(sorted(map(str, record))[:12]) or "none"
    raise RecordError(
        [("task_id", f"unknown kind of problem; docs/problems.md lists the known ones; its fields: {keys}")]
    )


def _selected(
    problems: list[Problem], ids: Sequence[str], paths: Sequence[Path], flaws: list[Flaw]
) -> list[Problem]:
    names = [problem.task_id for problem in problems]
    for pattern in ids:
        if not any(_matches(name, pattern) for name in names):
            near = difflib.get_close_matches(pattern, names, n=3)
            hint = f"; near it: {', '.join(near)}" if near else ""
            flaws.append(
                Flaw(paths[0] if paths else Path(), None, f"no problem has the id {pattern!r}{hint}")
            )
    return [problem for problem in problems if any(_matches(problem.task_id, pattern) for pattern in ids)]


def _matches(name: str, pattern: str) -> bool:
    return name == pattern or fnmatchcase(name, pattern)
