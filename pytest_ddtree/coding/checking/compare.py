"""Whether an answer is the expected one. Everything here is of exact builtin types."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any, Final

from ..sandbox.inner.codec import CodecError, encode

MODES: Final = frozenset({"exact", "equal", "approx", "set", "lines"})
TOLERANCE: Final = 1e-6
_NO_LIMIT: Final = 1 << 40


def agree(got: Any, expected: Any, cmp: str = "exact", atol: float | None = None) -> bool:
    """Compares by the rule `cmp`.

    exact: equal values of equal types throughout: True is not 1, 1 is not 1.0, a list is not a tuple; a NaN
        equals a NaN, 0.0 equals -0.0, and the order of a dict or set does not count.
    equal: what Python's == says (1 equals 1.0 and True; a list is still not a tuple), numbers also as approx. What
        public sets that compare with == mean.
    approx: like exact, but numbers (not bools) agree within a relative 1e-6 or the absolute `atol` (default
        1e-6), integers with floats, but two integers must be equal; the elements of sets and the keys of dicts
        must agree exactly. Two texts are compared by lines, their words as numbers where both are.
    set: lists or tuples (of the same type) or sets with exactly equal elements, each as often, in any order.
    lines: texts by lines, without white space at the ends of lines and without empty lines at the end.
    """
    if cmp == "exact":
        return _same(got, expected)
    if cmp == "equal":
        return _equal(got, expected) or _close(
            got, expected, TOLERANCE if atol is None else atol, words=False
        )
    if cmp == "approx":
        return _close(got, expected, TOLERANCE if atol is None else atol, words=True)
    if cmp == "set":
        return _same_elements(got, expected)
    if cmp == "lines":
        return type(got) is str and type(expected) is str and lines(got) == lines(expected)
    raise ValueError(f"unknown comparison {cmp!r}; known: {', '.join(sorted(MODES))}")


def lines(text: str) -> list[str]:
    """Lines without white space at their ends; empty ones at the end of the text are dropped."""
    found = [line.rstrip() for line in text.split("\n")]
    while found and not found[-1]:
        found.pop()
    return found


def _same(got: Any, expected: Any) -> bool:
    try:
        return _key(got) == _key(expected)
    except CodecError:
        return False


def _equal(got: Any, expected: Any) -> bool:
    """Python's own ==, which is safe here: both values consist of exact builtin types, so no foreign method runs."""
    try:
        return bool(got == expected)
    except RecursionError:
        return False


def _key(value: Any) -> bytes:
    return encode(value, max_bytes=_NO_LIMIT, canonical=True)


def _same_elements(got: Any, expected: Any) -> bool:
    if type(got) is not type(expected) or type(got) not in (list, tuple, set, frozenset):
        return False
    if len(got) != len(expected):
        return False
    return Counter(map(_key, got)) == Counter(map(_key, expected))


def _close(got: Any, expected: Any, atol: float, *, words: bool) -> bool:
    """Like exact with numbers that are near; `words`: those that texts spell, too."""
    if _is_number(got) and _is_number(expected):
        return _near(got, expected, atol)
    if type(got) is not type(expected):
        return False
    if type(got) in (list, tuple):
        return len(got) == len(expected) and all(
            _close(mine, theirs, atol, words=words) for mine, theirs in zip(got, expected, strict=True)
        )
    if type(got) is dict:
        if len(got) != len(expected):
            return False
        theirs = {_key(key): item for key, item in expected.items()}
        return all(
            (key := _key(name)) in theirs and _close(item, theirs[key], atol, words=words)
            for name, item in got.items()
        )
    if type(got) is complex:
        return _near(got.real, expected.real, atol) and _near(got.imag, expected.imag, atol)
    if type(got) is str and words:
        return _close_text(got, expected, atol)
    return _same(got, expected)


def _is_number(value: Any) -> bool:
    return type(value) is int or type(value) is float


def _near(got: int | float, expected: int | float, atol: float) -> bool:
    if got == expected:
        return True
    if type(got) is int and type(expected) is int:
        return False
    try:
        mine, theirs = float(got), float(expected)
    except OverflowError:
        # Beyond the range of floats integers are compared as what they are.
        return False
    if math.isnan(mine) or math.isnan(theirs):
        return math.isnan(mine) and math.isnan(theirs)
    return math.isclose(mine, theirs, rel_tol=TOLERANCE, abs_tol=atol)


def _close_text(got: str, expected: str, atol: float) -> bool:
    mine, theirs = lines(got), lines(expected)
    if len(mine) != len(theirs):
        return False
    return all(_close_line(one, other, atol) for one, other in zip(mine, theirs, strict=True))


def _close_line(got: str, expected: str, atol: float) -> bool:
    mine, theirs = got.split(), expected.split()
    if len(mine) != len(theirs):
        return False
    return all(one == other or _close_word(one, other, atol) for one, other in zip(mine, theirs, strict=True))


def _close_word(got: str, expected: str, atol: float) -> bool:
    mine, theirs = _number(got), _number(expected)
    return mine is not None and theirs is not None and _near(mine, theirs, atol)


def _number(word: str) -> int | float | None:
    """The number that a word spells, None for other words and for numbers beyond the range of floats."""
    for kind in (int, float):
        try:
            number = kind(word)
        except ValueError:
            continue
        spelt = any(character.isdigit() for character in word)
        return None if kind is float and math.isinf(number) and spelt else number
    return None
