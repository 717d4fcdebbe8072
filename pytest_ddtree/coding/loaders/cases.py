"""Cases as the built-in TOML files and our JSON Lines write them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, cast

from pytest_ddtree.coding.loaders.values import LONE_SURROGATE, MISSING, Faults, is_tolerance, is_unicode
from pytest_ddtree.coding.problems import COMPARISONS, Case, Comparison, Mode

#: Keys of a case by mode, besides `cmp` and `atol`.
KEYS: Final[Mapping[str, frozenset[str]]] = {
    "function": frozenset({"args", "kwargs", "expect"}),
    "class": frozenset({"args", "kwargs", "calls", "expect"}),
    "stdin": frozenset({"stdin", "expect"}),
}
_PY: Final = "_py"


def read_cases(faults: Faults, record: Mapping[str, Any], mode: Mode, *, literals: bool) -> tuple[Case, ...]:
    """The cases of a record.

    `literals` says that values are texts that hold Python literals (TOML). Otherwise they are JSON, and a key
    with ``_py`` behind it (``expect_py``) holds a Python literal instead, for tuples and sets.
    """
    cases = record.get("cases", MISSING)
    if not isinstance(cases, list) or not cases:
        faults.add("cases", "must be a list of at least one case")
        return ()
    read = [_read_case(faults, index, case, mode, literals) for index, case in enumerate(cases)]
    return tuple(case for case in read if case is not None)


def _read_case(faults: Faults, index: int, case: Any, mode: Mode, literals: bool) -> Case | None:
    if not isinstance(case, dict):
        faults.add((index, "cases"), f"must be a table, not {type(case).__name__}")
        return None
    before = len(faults.found)
    keys = KEYS[mode]
    python_keys = frozenset() if literals else frozenset(key + _PY for key in keys if key != "stdin")
    faults.unknown_keys(case, keys | python_keys | {"cmp", "atol"}, index)

    def value(key: str, default: Any = MISSING) -> Any:
        if not literals and key + _PY in case:
            if key in case:
                faults.add((index, key), f"stands beside {key}{_PY}; give one of them")
            return faults.literal((index, key + _PY), case[key + _PY])
        raw = case.get(key, default)
        if raw is MISSING:
            faults.add((index, key), "is missing")
            return None
        return faults.literal((index, key), raw) if literals and key in case and key != "stdin" else raw

    expect = value("expect")
    stdin = value("stdin") if mode == "stdin" else ""
    args = value("args", ()) if mode != "stdin" else ()
    kwargs = value("kwargs", {}) if mode != "stdin" else {}
    calls = value("calls") if mode == "class" else ()
    cmp = case.get("cmp", "lines" if mode == "stdin" else "exact")
    atol = case.get("atol")
    if len(faults.found) > before:
        return None
    _check_types(faults, index, mode, args, kwargs, calls, stdin, expect, cmp, atol)
    if len(faults.found) > before:
        return None
    return Case(
        args=tuple(args),
        kwargs=kwargs,
        calls=tuple((name, tuple(arguments)) for name, arguments in calls),
        stdin=stdin,
        expect=expect,
        cmp=cast(Comparison, cmp),
        atol=None if atol is None else float(atol),
    )


def _check_types(
    faults: Faults,
    index: int,
    mode: Mode,
    args: Any,
    kwargs: Any,
    calls: Any,
    stdin: Any,
    expect: Any,
    cmp: Any,
    atol: Any,
) -> None:
    if not isinstance(args, (list, tuple)):
        faults.add((index, "args"), "must be a tuple of arguments; a single one is written (x,)")
    if not isinstance(kwargs, dict) or not all(isinstance(key, str) and key.isidentifier() for key in kwargs):
        faults.add((index, "kwargs"), "must be a dict with argument names as keys")
    if mode == "class":
        if not isinstance(calls, (list, tuple)) or not calls or not all(map(_is_call, calls)):
            faults.add((index, "calls"), "must be a list of (method, (arguments,)) pairs, at least one")
        elif not isinstance(expect, list) or len(expect) != len(calls):
            faults.add((index, "expect"), f"must be a list of {len(calls)} values, one a call")
    if mode == "stdin":
        if not isinstance(stdin, str):
            faults.add((index, "stdin"), "must be a text")
        elif not is_unicode(stdin):
            faults.add((index, "stdin"), LONE_SURROGATE)
        if not isinstance(expect, str):
            faults.add((index, "expect"), "must be a text: the whole output")
        elif not is_unicode(expect):
            faults.add((index, "expect"), LONE_SURROGATE)
    for key, sent in (("args", args), ("kwargs", kwargs), ("calls", calls), ("expect", expect)):
        faults.crosses((index, key), sent)
    if cmp not in COMPARISONS:
        faults.add((index, "cmp"), f"must be one of {', '.join(COMPARISONS)}, not {cmp!r}")
    elif cmp == "set" and not isinstance(expect, (list, tuple, set, frozenset)):
        faults.add((index, "cmp"), "set compares lists, tuples and sets; `expect` is none of them")
    elif cmp == "lines" and not isinstance(expect, str):
        faults.add((index, "cmp"), "lines compares texts; `expect` is none")
    if atol is not None:
        if not is_tolerance(atol):
            faults.add((index, "atol"), "must be a number of at least 0")
        elif cmp not in ("approx", "equal"):
            faults.add((index, "atol"), "means something with cmp approx or equal only")


def _is_call(call: Any) -> bool:
    return (
        isinstance(call, (list, tuple))
        and len(call) == 2
        and isinstance(call[0], str)
        and call[0].isidentifier()
        and isinstance(call[1], (list, tuple))
    )
