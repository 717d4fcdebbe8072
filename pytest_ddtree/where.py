"""Constraints on the grid: `topk <= budget`, `window != none or budget <= 16`. Parsed with Python's own grammar, never executed."""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from pytest_ddtree.grid import Config

NAMES = ("budget", "topk", "window", "block_size")

_COMPARE: dict[type[ast.cmpop], Callable[[float, float], bool]] = {
    ast.LtE: operator.le,
    ast.Lt: operator.lt,
    ast.GtE: operator.ge,
    ast.Gt: operator.gt,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
}
_COMPUTE: dict[type[ast.operator], Callable[[float, float], float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
}


class WhereError(ValueError):
    """A constraint that cannot be read; the text quotes it and says what is allowed."""


class _NotConcerned(Exception):
    """The config does not have what a comparison is about."""


@dataclass(frozen=True, slots=True)
class Where:
    """A constraint that was read."""

    text: str
    _tree: ast.expr

    def keeps(self, config: Config) -> bool:
        """Whether a config fulfils it. What hangs on something that the config does not have (a chain has no budget) is fulfilled,
        also when it is negated.

        `window` is infinite for the full context, which is written `none`.
        """
        return _truth(self._tree, config) is not False


def parse_where(text: str) -> Where:
    """A constraint.

    Raises:
        WhereError: it is no comparison of budget, topk, window, block_size and whole numbers, joined by and, or, not.
    """
    allowed = f"comparisons of {', '.join(NAMES)}, whole numbers and none (<=, <, >=, >, ==, !=; + - *), joined by and, or, not"
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise WhereError(f"{text!r} cannot be read; it takes {allowed}") from None
    _check(tree, text, allowed, truth=True)
    return Where(text.strip(), tree)


def split(configs: Iterable[Config], where: Where) -> tuple[tuple[Config, ...], tuple[Config, ...]]:
    """Those that stay and those that go, to be listed and not dropped in silence."""
    kept: list[Config] = []
    gone: list[Config] = []
    for config in configs:
        (kept if where.keeps(config) else gone).append(config)
    return tuple(kept), tuple(gone)


def _check(node: ast.expr, text: str, allowed: str, *, truth: bool) -> None:
    def refuse(what: str) -> WhereError:
        return WhereError(f"{text!r}: {what}; it takes {allowed}")

    match node:
        case ast.BoolOp(values=values) if truth:
            for value in values:
                _check(value, text, allowed, truth=True)
        case ast.UnaryOp(op=ast.Not(), operand=operand) if truth:
            _check(operand, text, allowed, truth=True)
        case ast.Compare(left=left, ops=ops, comparators=others) if truth:
            if any(type(op) not in _COMPARE for op in ops):
                raise refuse("a comparison that is not known")
            for value in (left, *others):
                _check(value, text, allowed, truth=False)
        case ast.BinOp(left=left, op=op, right=right) if not truth and type(op) in _COMPUTE:
            _check(left, text, allowed, truth=False)
            _check(right, text, allowed, truth=False)
        case ast.Name(id=name) if not truth:
            if name not in (*NAMES, "none"):
                raise refuse(f"{name!r} is not known")
        case ast.Constant(value=value) if not truth:
            if type(value) is not int or value > 10**9:
                raise refuse(f"{value!r} is no whole number")
        case _:
            raise refuse(f"`{ast.unparse(node)}` is {'no comparison' if truth else 'no number'}")


def _truth(node: ast.expr, config: Config) -> bool | None:
    """Kleene's logic: None where it hangs on something that the config does not have, whatever negates it."""
    match node:
        case ast.BoolOp(op=ast.And(), values=values):
            return _joined([_truth(value, config) for value in values], decides=False)
        case ast.BoolOp(values=values):
            return _joined([_truth(value, config) for value in values], decides=True)
        case ast.UnaryOp(operand=operand):
            truth = _truth(operand, config)
            return None if truth is None else not truth
        case ast.Compare(left=left, ops=ops, comparators=others):
            try:
                numbers = [_number(value, config) for value in (left, *others)]
            except _NotConcerned:
                return None
            return all(
                _COMPARE[type(op)](one, other)
                for op, one, other in zip(ops, numbers[:-1], numbers[1:], strict=True)
            )
    raise AssertionError(ast.dump(node))


def _joined(truths: Sequence[bool | None], *, decides: bool) -> bool | None:
    """`and` (False decides) or `or` (True decides)."""
    if decides in truths:
        return decides
    return None if None in truths else not decides


def _number(node: ast.expr, config: Config) -> float:
    match node:
        case ast.Constant(value=int(value)):
            return value
        case ast.Name(id="none"):
            return math.inf
        case ast.Name(id="window"):
            return math.inf if config.window is None else config.window
        case ast.Name(id=name):
            value = getattr(config, name)
            if value is None:
                raise _NotConcerned
            return float(value)
        case ast.BinOp(left=left, op=op, right=right):
            return _COMPUTE[type(op)](_number(left, config), _number(right, config))
    raise AssertionError(ast.dump(node))
