"""Every kind of record that a session writes is in the table of docs/results.md, and that has no other."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest_ddtree
from pytest_ddtree.results import answers

PACKAGE = Path(pytest_ddtree.__file__).parent
PAGE = PACKAGE.parent / "docs" / "results.md"
WRITERS = ("store", "store_late")


def written() -> set[str]:
    """The first argument of every call that writes a record, and what comparisons of builds and merged runs yield."""
    found = set()
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args:
                of_store = node.func.attr == "append" and "store" in ast.unparse(node.func.value)
                of_store |= path.name == "ab.py" and node.func.attr == "_keep"
                first = node.args[0]
                if (
                    (of_store or node.func.attr in WRITERS)
                    and isinstance(first, ast.Constant)
                    and isinstance(first.value, str)
                ):
                    found.add(first.value)
    for name in ("ab_outcome.py", "report/merged.py"):
        text = (PACKAGE / name).read_text("utf-8")
        found.update(re.findall(r'yield "([a-z]+)"|yield \{"kind": "([a-z]+)"', text))
    return {kind for one in found for kind in ([one] if isinstance(one, str) else one) if kind}


def test_every_kind_of_record_is_documented_and_no_other() -> None:
    kinds = written()
    assert {"round", "sampling", "compared", "group", "overhead"} <= kinds
    documented = set(re.findall(r"^\| `([a-z_]+)` \|", PAGE.read_text("utf-8"), re.MULTILINE))
    assert documented == kinds - {answers.KIND}
