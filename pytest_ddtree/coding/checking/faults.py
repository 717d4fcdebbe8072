"""Faults of a problem, not of a solution."""

from __future__ import annotations

from pytest_ddtree.errors import Infrastructure


class ProblemFaultError(Infrastructure):
    """The problem itself cannot be judged: unknown mode, no cases, a test that calls nothing."""

    def __init__(self, task_id: str, what: str) -> None:
        super().__init__(f"problem {task_id}: {what}")
        self.task_id = task_id
