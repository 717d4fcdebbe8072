"""Gatekeepers of made-up sessions, and what they recorded."""

from __future__ import annotations

import math
import random
from pathlib import Path
from typing import Any

from made import KEY, a_cell

from pytest_ddtree.results.expected import Expected
from pytest_ddtree.results.fingerprint import Fingerprint
from pytest_ddtree.results.gatekeeper import (
    Gatekeeper,
    GatePolicy,
    Recording,
    headline_tests,
)
from pytest_ddtree.results.gates import Design
from pytest_ddtree.results.model import CellFigures, Results

CONFIG = "b8-k4-wnone"
PRINT = Fingerprint(
    {
        "date": "2026-03-01T10:00:00",
        "gpu.name": "NVIDIA H200",
        "gpu.count": 8,
        "model.name": "/models/K2",
        "model.weights": "abc",
        "draft.name": "/models/draft",
        "draft.weights": "def",
        "workload.digest": "w",
        "engine.revision": "0123456789abcdef",
    }
)
HEADLINE = ((CONFIG, KEY),)


def rates(mean: float, n: int = 6, *, noise: float = 0.004, seed: int = 0) -> list[float]:
    generator = random.Random(seed)
    return [mean * math.exp(generator.gauss(0, noise)) for _ in range(n)]


def keeper(expected: Expected | None, **policy: Any) -> Gatekeeper:
    fields: dict[str, Any] = {
        "headline": HEADLINE,
        "design": Design(tests=headline_tests(HEADLINE)),
        **policy,
    }
    return Gatekeeper(GatePolicy(**fields), PRINT, expected)


def accepted(path: Path, *means: float) -> Expected:
    """Expected figures, each sample recorded by a session that was told to."""
    expected = Expected(path)
    for mean in means:
        recorded(expected, a_cell(rates(mean)))
    return expected


def recorded(expected: Expected, *cells: CellFigures, **policy: Any) -> Recording:
    """What a session recorded that was told to: each cell is judged, and recorded at the end."""
    gatekeeper = keeper(expected, **{"update": "all", **policy})
    results = Results(cells={(one.config, one.key): one for one in cells})
    for one in cells:
        outcome = gatekeeper.check(one, results.cells.get(("baseline", one.key)))
        assert (outcome.failures, outcome.errors) == ((), ())
    return gatekeeper.record(results)
