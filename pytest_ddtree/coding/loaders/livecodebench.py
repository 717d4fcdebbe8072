"""LiveCodeBench: programs for standard input and functions, with packed private cases."""

from __future__ import annotations

import base64
import binascii
import io
import json
import pickle
import zlib
from collections.abc import Mapping
from typing import Any, Final

from pytest_ddtree.coding.loaders.values import (
    LONE_SURROGATE,
    REQUEST,
    Faults,
    has_float,
    is_unicode,
    python_block,
)
from pytest_ddtree.coding.problems import Case, Problem

_KEYS: Final = frozenset(
    {
        "question_id",
        "question_title",
        "question_content",
        "starter_code",
        "public_test_cases",
        "private_test_cases",
        "metadata",
    }
)
#: Unpacked size of one problem's private cases. The largest of the public set is below a tenth of this.
MAX_UNPACKED: Final = 512 * 1024 * 1024


#: Starter code has annotations such as List[int] and imports nothing: it is written for a judge that has imported these.
_GIVEN: Final = """
from typing import Any, Callable, DefaultDict, Deque, Dict, FrozenSet, Generator, Iterable, Iterator, List, Optional, Set, Tuple, Union
from collections import Counter, OrderedDict, defaultdict, deque
from bisect import bisect_left, bisect_right, insort
from functools import cache, cmp_to_key, lru_cache, reduce
from heapq import heapify, heappop, heappush, heappushpop, heapreplace, nlargest, nsmallest
from itertools import accumulate, chain, combinations, count, cycle, groupby, pairwise, permutations, product, repeat
from math import ceil, comb, factorial, floor, gcd, inf, isqrt, lcm, log, log2, sqrt
import bisect, collections, copy, functools, heapq, itertools, math, operator, random, re, string
"""


class UnpackError(ValueError):
    """Packed cases that are not what the set packs."""


def from_livecodebench(record: Mapping[str, Any]) -> Problem:
    """A problem of LiveCodeBench. Raises RecordError."""
    faults = Faults()
    task_id = faults.text(record, "question_id")
    content = faults.text(record, "question_content")
    starter = faults.text(record, "starter_code", "")
    tests = [*_tests(faults, record, "public_test_cases"), *_tests(faults, record, "private_test_cases")]
    name = _function_name(faults, record)
    kinds = {str(test.get("testtype")) for test in tests}
    if not faults.found and not tests:
        faults.add("public_test_cases", "holds no cases, and neither does private_test_cases")
    elif tests and kinds not in ({"stdin"}, {"functional"}):
        faults.add(
            "public_test_cases",
            f"testtype must be stdin or functional throughout, not {sorted(kinds)}",
        )
    functional = kinds == {"functional"}
    if functional and not name:
        faults.add("metadata", "names no func_name, which functional cases need")
    faults.raise_if_any()
    cases = [
        _functional(faults, i, test) if functional else _program(faults, i, test)
        for i, test in enumerate(tests)
    ]
    faults.raise_if_any()
    return Problem(
        task_id=task_id,
        mode="function" if functional else "stdin",
        entry_point=name if functional else "",
        prompt=content,
        question=_question(content, starter, functional),
        cases=tuple(case for case in cases if case is not None),
        given=_GIVEN if functional else "",
        title=faults.text(record, "question_title", ""),
        shape="livecodebench",
        extra={key: value for key, value in record.items() if key not in _KEYS},
    )


def _question(content: str, starter: str, functional: bool) -> str:
    if functional and starter.strip():
        return f"{content.strip()}\n\nUse this starter code:\n\n{python_block(starter)}\n\n{REQUEST}"
    return f"{content.strip()}\n\nThe program reads standard input and prints its answer. {REQUEST}"


def _function_name(faults: Faults, record: Mapping[str, Any]) -> str:
    metadata = record.get("metadata") or {}
    if isinstance(metadata, str):
        try:
            metadata = json.loads(metadata)
        except (ValueError, RecursionError):
            faults.add("metadata", "is no JSON")
            return ""
    name = metadata.get("func_name", "") if isinstance(metadata, dict) else None
    if not isinstance(name, str) or (name and not name.isidentifier()):
        faults.add("metadata", "func_name must be the name of a function")
        return ""
    return name


def _tests(faults: Faults, record: Mapping[str, Any], key: str) -> list[dict[str, Any]]:
    value = record.get(key) or []
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            try:
                value = unpack(value)
            except UnpackError as error:
                faults.add(key, str(error))
                return []
    wanted = isinstance(value, list) and all(
        isinstance(test, dict) and isinstance(test.get("input"), str) and isinstance(test.get("output"), str)
        for test in value
    )
    if not wanted:
        faults.add(key, "must be a list of cases with input, output and testtype")
        return []
    return list(value)


class _TextUnpickler(pickle.Unpickler):
    """Unpickles texts. Anything that would import or call something is refused."""

    def find_class(self, module: str, name: str) -> Any:
        raise UnpackError(f"the packed cases want to load {module}.{name}; this file is not to be trusted")

    def persistent_load(self, pid: Any) -> Any:
        raise UnpackError("the packed cases refer to something outside of them")


def unpack(text: str) -> Any:
    """Cases packed as base64 of zlib of a pickled JSON text. Raises UnpackError for anything else."""
    try:
        packed = base64.b64decode(text, validate=True)
        inflater = zlib.decompressobj()
        pickled = inflater.decompress(packed, MAX_UNPACKED)
    except (binascii.Error, ValueError, zlib.error) as error:
        raise UnpackError(f"is neither JSON nor packed cases: {error}") from error
    if inflater.unconsumed_tail:
        raise UnpackError(f"unpacks to more than {MAX_UNPACKED >> 20} MiB")
    if not inflater.eof:
        raise UnpackError("the packed cases end early")
    try:
        value = _TextUnpickler(io.BytesIO(pickled)).load()
    except UnpackError:
        raise
    except Exception as error:
        # The unpickler raises whatever malformed data makes its opcodes do; all of it means the same here.
        raise UnpackError(f"the packed cases are damaged: {error}") from error
    if not isinstance(value, (str, bytes)):
        raise UnpackError(f"the packed cases hold {type(value).__name__}, not a text")
    try:
        return json.loads(value)
    except (ValueError, RecursionError) as error:
        raise UnpackError(f"the packed cases are no JSON: {error}") from error


def _program(faults: Faults, index: int, test: Mapping[str, Any]) -> Case:
    for key in ("input", "output"):
        if not is_unicode(test[key]):
            faults.add((index, key), LONE_SURROGATE)
    return Case(stdin=test["input"], expect=test["output"], cmp="lines")


def _functional(faults: Faults, index: int, test: Mapping[str, Any]) -> Case | None:
    """Arguments are JSON values, one a line; the output is one JSON value."""
    try:
        args = tuple(json.loads(line) for line in test["input"].split("\n") if line.strip())
        expect = json.loads(test["output"])
    except (ValueError, RecursionError) as error:
        faults.add((index, "input"), f"is no JSON: {error}")
        return None
    if not (faults.crosses((index, "input"), args) and faults.crosses((index, "output"), expect)):
        return None
    return Case(args=args, expect=expect, cmp="approx" if has_float(expect) else "exact")
