"""The small task that the extraction tests are written around, and how they judge an extraction."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field
from typing import Any

from pytest_ddtree.coding import Extraction, Status, extract

GOOD = "def add(a, b):\n    return a + b\n"
WRONG = "def add(a, b):\n    return a - b\n"


def fence(code: str, tag: str = "python", mark: str = "```") -> str:
    return f"{mark}{tag}\n{code.rstrip()}\n{mark}\n"


@dataclass(frozen=True)
class Shape:
    """A response and what must come of it: "ok" means that the code of the answer adds."""

    name: str
    response: str | None
    status: Status = "ok"
    entry_point: str | None = "add"
    finish_reason: str | None = None
    reasoning: str | None = None
    code: str | None = None
    options: dict[str, Any] = field(default_factory=dict)

    def extract(self) -> Extraction:
        return extract(
            self.response,
            entry_point=self.entry_point,
            finish_reason=self.finish_reason,
            reasoning=self.reasoning,
            **self.options,
        )

    def check(self) -> None:
        found = self.extract()
        assert found.status == self.status, (found.status, found.code)
        if self.status != "ok":
            assert found.code is None
            return
        assert found.code is not None
        assert found.code.endswith("\n")
        assert "\r" not in found.code
        if self.code is not None:
            assert found.code == self.code
        elif self.entry_point == "add":
            assert adds(found.code)
        assert found.span is not None
        answers = [block for block in found.blocks if block.role == "answer"]
        assert [block.span for block in answers] == [found.span]


def adds(code: str) -> bool:
    """Whether this code, which the tests themselves wrote, defines an `add` that adds."""
    namespace: dict[str, Any] = {"__name__": "answer"}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        exec(compile(code, "<answer>", "exec", dont_inherit=True), namespace)
    result = namespace["add"](2, 3)
    if hasattr(result, "send"):
        try:
            result.send(None)
        except StopIteration as stop:
            result = stop.value
    return bool(result == 5)
