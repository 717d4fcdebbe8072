"""What a program binds, what it lacks, and what it is for. Works on trees, never runs anything."""

from __future__ import annotations

import ast
import builtins
import symtable
import sys
from collections.abc import Iterator
from typing import Final, Literal, TypeAlias

from pytest_ddtree.coding.extract.source import Program, quietly

#: How well a block defines a name, best last.
Definition: TypeAlias = Literal["none", "import", "method", "stub", "full"]
RANK: Final[dict[Definition, int]] = {"none": 0, "import": 1, "method": 2, "stub": 3, "full": 4}

_BUILTINS: Final = frozenset(dir(builtins)) | {
    "__name__", "__file__", "__doc__", "__builtins__", "__spec__", "__package__", "__loader__",
}  # fmt: skip
_FUNCTIONS: Final = (ast.FunctionDef, ast.AsyncFunctionDef)
_WRAPPER_CLASS: Final = "Solution"


def module_statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Statements that run at module level, also within if, try, with, for, while and match.

    The body of a main guard is left out: what it binds belongs to a demonstration.
    """
    stack = list(reversed(body))
    while stack:
        statement = stack.pop()
        yield statement
        if isinstance(statement, (*_FUNCTIONS, ast.ClassDef)):
            continue
        inner: list[ast.stmt] = []
        for field in ("body", "handlers", "cases", "orelse", "finalbody"):
            if field == "body" and _is_main_guard(statement):
                continue
            for child in getattr(statement, field, ()):
                inner.extend([child] if isinstance(child, ast.stmt) else child.body)
        stack.extend(reversed(inner))


def _is_main_guard(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.If) and any(
        isinstance(node, ast.Name) and node.id == "__name__" for node in ast.walk(statement.test)
    )


def bound_names(statement: ast.stmt) -> set[str]:
    """Names that one module-level statement binds itself (inner statements are not looked into)."""
    if isinstance(statement, (*_FUNCTIONS, ast.ClassDef)):
        return {statement.name}
    if isinstance(statement, (ast.Import, ast.ImportFrom)):
        return {(alias.asname or alias.name).partition(".")[0] for alias in statement.names}
    targets: list[ast.expr] = []
    if isinstance(statement, ast.Assign):
        targets = statement.targets
    elif isinstance(statement, ast.AnnAssign):
        targets = [statement.target] if statement.value is not None else []
    elif isinstance(statement, (ast.AugAssign, ast.For, ast.AsyncFor)):
        targets = [statement.target]
    elif isinstance(statement, (ast.With, ast.AsyncWith)):
        targets = [item.optional_vars for item in statement.items if item.optional_vars is not None]
    elif isinstance(statement, ast.Expr) and isinstance(statement.value, ast.NamedExpr):
        targets = [statement.value.target]
    return {
        node.id
        for target in targets
        for node in ast.walk(target)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    }


def definition_of(program: Program, name: str) -> Definition:
    """How a program defines a name at module level; of several definitions the last one counts.

    A stub is a function or class of nothing but a docstring, ``...``, ``pass`` or NotImplementedError. An
    import defines a name only if it comes from the standard library: ``from solution import add`` is a
    usage. A method counts if its class is ``Solution``.
    """
    result: Definition = "none"
    for statement in module_statements(program.tree.body):
        if isinstance(statement, ast.ClassDef) and statement.name == _WRAPPER_CLASS != name:
            if any(isinstance(inner, _FUNCTIONS) and inner.name == name for inner in statement.body):
                result = "method" if RANK[result] < RANK["method"] else result
        elif name in bound_names(statement):
            if isinstance(statement, (ast.Import, ast.ImportFrom)):
                if RANK[result] <= RANK["import"] and _from_stdlib(statement):
                    result = "import"
            elif isinstance(statement, (*_FUNCTIONS, ast.ClassDef)):
                result = "stub" if _is_stub(statement) else "full"
            else:
                result = "full"
    return result


def _from_stdlib(statement: ast.Import | ast.ImportFrom) -> bool:
    if isinstance(statement, ast.Import):
        modules = [alias.name for alias in statement.names]
    else:
        modules = [statement.module or ""] if not statement.level else [""]
    return all(module.partition(".")[0] in sys.stdlib_module_names for module in modules)


def _is_stub(definition: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> bool:
    if isinstance(definition, ast.ClassDef):
        return all(_is_stub(s) if isinstance(s, _FUNCTIONS) else _says_nothing(s) for s in definition.body)
    return all(_says_nothing(statement) for statement in definition.body)


def _says_nothing(statement: ast.stmt) -> bool:
    if isinstance(statement, ast.Expr):
        return isinstance(statement.value, ast.Constant)
    if isinstance(statement, ast.Raise):
        raised = [] if statement.exc is None else ast.walk(statement.exc)
        return any(isinstance(node, ast.Name) and node.id == "NotImplementedError" for node in raised)
    return isinstance(statement, ast.Pass)


def lacking_names(program: Program) -> set[str]:
    """Global names that a program uses and neither binds nor finds among the builtins."""
    table = quietly(lambda: symtable.symtable(program.source, "<answer>", "exec"))
    if table is None:
        return set()
    bound: set[str] = set()
    used: set[str] = set()
    stack = [table]
    while stack:
        scope = stack.pop()
        stack.extend(scope.get_children())
        module = scope.get_type() == "module"
        for symbol in scope.get_symbols():
            binds = symbol.is_assigned() or symbol.is_imported() or symbol.is_namespace()
            if binds and (module or symbol.is_declared_global()):
                bound.add(symbol.get_name())
            if symbol.is_referenced() and (module or symbol.is_global()):
                used.add(symbol.get_name())
    return (used - bound - _BUILTINS) | _used_before_bound(program)


def _used_before_bound(program: Program) -> set[str]:
    """Names such as `f` in ``f = cache(f)`` without an `f` before it."""
    bound: set[str] = set()
    early: set[str] = set()
    for statement in module_statements(program.tree.body):
        new = bound_names(statement)
        value = getattr(statement, "value", None)
        if new and value is not None and isinstance(statement, (ast.Assign, ast.AnnAssign)):
            early |= {
                node.id
                for node in _eager_nodes(value)
                if isinstance(node, ast.Name) and node.id in new and node.id not in bound
            }
        bound |= new
    return early - _BUILTINS


def _eager_nodes(root: ast.expr) -> Iterator[ast.AST]:
    """Nodes evaluated at once: the bodies of lambdas are not."""
    stack: list[ast.AST] = [root]
    while stack:
        node = stack.pop()
        yield node
        if not isinstance(node, ast.Lambda):
            stack.extend(ast.iter_child_nodes(node))


def reads_input(program: Program) -> bool:
    """Whether a program mentions a way to read standard input."""
    return any(
        (isinstance(node, ast.Name) and node.id in ("input", "stdin", "fileinput"))
        or (isinstance(node, ast.Attribute) and node.attr == "stdin")
        or (isinstance(node, ast.Call) and _opens_input(node))
        for node in ast.walk(program.tree)
    )


def _opens_input(call: ast.Call) -> bool:
    """``open(0)``, ``os.read(0, n)``, ``open("/dev/stdin")``."""
    function = getattr(call.func, "id", getattr(call.func, "attr", ""))
    first = call.args[0] if call.args else None
    return (
        function in ("open", "read", "fdopen")
        and isinstance(first, ast.Constant)
        and first.value in (0, "/dev/stdin")
    )


def writes_output(program: Program) -> bool:
    """Whether a program mentions a way to write standard output."""
    return any(
        (isinstance(node, ast.Name) and node.id in ("print", "stdout"))
        or (isinstance(node, ast.Attribute) and node.attr == "stdout")
        for node in ast.walk(program.tree)
    )


def defines_something(program: Program) -> bool:
    """Whether a program defines a function or class that is no test."""
    return any(
        isinstance(statement, (*_FUNCTIONS, ast.ClassDef))
        and not statement.name.lower().startswith("test")
        and not any(map(_names_a_test_case, getattr(statement, "bases", ())))
        for statement in module_statements(program.tree.body)
    )


def _names_a_test_case(base: ast.expr) -> bool:
    return any("TestCase" in getattr(node, "id", getattr(node, "attr", "")) for node in ast.walk(base))


def does_something(program: Program) -> bool:
    """Whether a program is more than bare values, as the output of a program often parses."""
    return any(
        not (isinstance(statement, ast.Expr) and not _has_call(statement.value))
        for statement in program.tree.body
    )


def _has_call(node: ast.expr) -> bool:
    return any(isinstance(inner, (ast.Call, ast.Await)) for inner in ast.walk(node))
