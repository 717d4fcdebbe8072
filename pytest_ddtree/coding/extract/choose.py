"""Which of the candidates is the final answer, and what it needs from the ones before it."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from pytest_ddtree.coding.extract.candidates import Candidate
from pytest_ddtree.coding.extract.lines import strip_invisible
from pytest_ddtree.coding.extract.names import (
    RANK,
    bound_names,
    defines_something,
    definition_of,
    does_something,
    lacking_names,
    module_statements,
    reads_input,
    writes_output,
)
from pytest_ddtree.coding.extract.raw import definition_pattern
from pytest_ddtree.coding.extract.source import Parser, Program

_STARTS_PROGRAM: Final = re.compile(
    r"(?:\s|#[^\n]*\n|\"\"\"(?s:.{0,2000}?)\"\"\")*+(?:import\s+\w|from\s+[\w.]+\s+import\b|(?:async\s+)?def\s|class\s+\w|@\w|\Z)"
)
#: Candidates parsed only to say why there is no answer.
_MAX_DIAGNOSED: Final = 8
_MAX_HELPER_ROUNDS: Final = 40
#: Stands before every candidate.
_GIVEN: Final = -1


@dataclass(frozen=True, slots=True)
class Target:
    """What the answer must be: a definition of `entry_point`, a program (`stdin`), or any code.

    `given` is code that the question holds: names that the answer lacks may come from there.
    """

    entry_point: str | None
    stdin: bool
    given: str = ""

    def mentioned_in(self, text: str) -> bool:
        """A cheap necessary condition, so that few candidates are parsed."""
        if self.stdin or self.entry_point is None:
            return True
        return self.entry_point in (text if text.isascii() else strip_invisible(text))

    def rank(self, program: Program) -> int:
        """How well a program is what was asked for: 0 not at all, 4 fully."""
        if self.stdin:
            return 4 if reads_input(program) else 2 if writes_output(program) else 0
        if self.entry_point is not None:
            return RANK[definition_of(program, self.entry_point)]
        return 4 if defines_something(program) else 2 if does_something(program) else 0

    def seems_defined_in(self, text: str) -> bool:
        """Whether text that does not parse looks as if it meant to define the target."""
        if self.stdin or self.entry_point is None:
            return _STARTS_PROGRAM.match(text) is not None and bool(text.strip())
        return definition_pattern(self.entry_point).search(text) is not None


@dataclass(frozen=True, slots=True)
class Choice:
    """The answer's code and the indexes of the candidates that it was made from."""

    code: str
    answer: int
    helpers: tuple[int, ...]


def choose(candidates: Sequence[Candidate], target: Target, parser: Parser) -> Choice | None:
    """The last candidate that is fully what was asked for, else the last of the best rank below that."""
    best: tuple[int, int, Program] | None = None
    for index in range(len(candidates) - 1, -1, -1):
        candidate = candidates[index]
        if not candidate.python or not target.mentioned_in(candidate.text):
            continue
        program = parser.repaired(candidate.text)
        rank = 0 if program is None else target.rank(program)
        if program is not None and rank > (best[0] if best else 0):
            best = rank, index, program
            if rank == RANK["full"]:
                break
    if best is None:
        return None
    rank, index, program = best
    code, helpers = _with_helpers(candidates, index, program, parser, target.given)
    if not target.stdin and target.entry_point is not None and rank == RANK["method"]:
        code += f"\n\n{target.entry_point} = Solution().{target.entry_point}\n"
    return Choice(code, index, helpers)


def continues_answer(candidate: Candidate, target: Target) -> bool:
    """Whether a block that the text's end cut off was to be (a new version of) the answer."""
    text = candidate.text
    if target.entry_point is not None and not target.stdin and target.seems_defined_in(text):
        return True
    return _STARTS_PROGRAM.match(text) is not None and (candidate.tagged or bool(text.strip()))


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """Why no candidate is the answer: a broken one, or valid code that is something else."""

    broken: int | None
    other: int | None


def diagnose(candidates: Sequence[Candidate], target: Target, parser: Parser) -> Diagnosis:
    """Look at the last few candidates. Indexes into `candidates`, None for no such one."""
    broken: int | None = None
    meant: int | None = None
    other: int | None = None
    looked_at = 0
    for index in range(len(candidates) - 1, -1, -1):
        candidate = candidates[index]
        if not candidate.python:
            continue
        looked_at += 1
        if looked_at > _MAX_DIAGNOSED:
            break
        program = parser.repaired(candidate.text)
        if program is not None:
            if other is None and does_something(program):
                other = index
        elif meant is None and target.seems_defined_in(candidate.text):
            meant = index
        elif broken is None and candidate.tagged and candidate.text.strip():
            broken = index
    if meant is not None:
        return Diagnosis(meant, None)
    return Diagnosis(broken if other is None else None, other)


def _with_helpers(
    candidates: Sequence[Candidate], answer: int, program: Program, parser: Parser, given: str
) -> tuple[str, tuple[int, ...]]:
    """The program, preceded by those statements of earlier blocks, else of the question, that bind names it lacks.

    Statements, not blocks: a draft that also holds the helper is not run, only the helper is taken.
    """
    wanted = lacking_names(program)
    settled: set[str] = set()
    picked: dict[tuple[int, int], str] = {}
    for _ in range(_MAX_HELPER_ROUNDS):
        wanted -= settled
        if not wanted:
            break
        name = min(wanted)
        settled.add(name)
        found = _statements_binding(candidates, answer, name, parser)
        if not found and given:
            found = _binding(name, parser.parse(given), _GIVEN)
        for key, source in found:
            if key not in picked:
                picked[key] = source
                helper = parser.parse(source)
                if helper is not None:
                    wanted |= lacking_names(helper)
    if not picked:
        return program.source, ()
    ordered = sorted(picked)
    used = {index for index, _ in ordered} - {_GIVEN}
    return _joined([picked[key] for key in ordered], program), tuple(sorted(used))


def _statements_binding(
    candidates: Sequence[Candidate], before: int, name: str, parser: Parser
) -> list[tuple[tuple[int, int], str]]:
    """The statements that bind `name` in the nearest block before the answer that does."""
    for index in range(before - 1, -1, -1):
        candidate = candidates[index]
        if not candidate.python or name not in candidate.text:
            continue
        found = _binding(name, parser.repaired(candidate.text), index)
        if found:
            return found
    return []


def _binding(name: str, program: Program | None, index: int) -> list[tuple[tuple[int, int], str]]:
    """The statements of one program that bind `name`; `index` says which program it is."""
    if program is None:
        return []
    lines = program.source.split("\n")
    return [
        ((index, statement.lineno), _source_of(statement, lines))
        for statement in program.tree.body
        if any(name in bound_names(inner) for inner in module_statements([statement]))
    ]


def _source_of(statement: ast.stmt, lines: list[str]) -> str:
    decorators: list[ast.expr] = getattr(statement, "decorator_list", [])
    first = min([statement.lineno, *(decorator.lineno for decorator in decorators)])
    return "\n".join(lines[first - 1 : statement.end_lineno]) + "\n"


def _joined(helpers: list[str], program: Program) -> str:
    """Helpers go first, but behind the future imports of the answer, which must stay at the top."""
    future = [s for s in program.tree.body if isinstance(s, ast.ImportFrom) and s.module == "__future__"]
    head = "\n\n".join(helper.rstrip("\n") for helper in helpers if "from __future__" not in helper)
    if not future:
        return f"{head}\n\n\n{program.source}"
    lines = program.source.split("\n")
    cut = future[-1].end_lineno or 0
    return "\n".join([*lines[:cut], head, "", *lines[cut:]])
