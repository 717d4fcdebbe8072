"""What the pool is told of the session: never more than the model can do."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from pytest_ddtree.model_files import model_facts
from pytest_ddtree.options import make_settings
from pytest_ddtree.server_setup import server_settings


@pytest.mark.parametrize(
    ("context", "positions", "expected"),
    [
        ("60,512", None, 640 + 1024 + 64),
        ("8192", None, 8192 + 64 + 64),
        ("16200", 16384, 16328),
        ("16280", 16384, 16384),
    ],
)
def test_the_context_length_holds_the_longest_request_and_no_more_than_the_model(
    context: str, positions: int | None, expected: int
) -> None:
    """A server that is asked for more positions than its model has does not start."""
    settings = make_settings({"context": (context, "here")})
    facts = replace(model_facts(settings), max_positions=positions)
    assert server_settings(settings, facts, Path("run")).context_length == expected
