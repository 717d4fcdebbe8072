"""Weights for the reference server's tests: tiny random ones, and the trained ones that the package ships."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from reference_harness import Harness, harness

from pytest_ddtree.reference.args import DEFAULT_WEIGHTS
from pytest_ddtree.reference.testing import TinyShape, write_checkpoints

Weights = tuple[Path, Path]


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Weights:
    """A random pair with two query heads per key-value head."""
    shape = TinyShape(hidden_size=64, num_layers=4, num_heads=4, num_kv_heads=2, target_layer_ids=(0, 1, 2))
    return write_checkpoints(tmp_path_factory.mktemp("tiny"), shape)


@pytest.fixture(scope="session")
def trained() -> Weights:
    return DEFAULT_WEIGHTS / "target", DEFAULT_WEIGHTS / "draft"


@pytest.fixture(scope="session")
def plain(tiny: Weights) -> Iterator[Harness]:
    """A non-speculative engine on the tiny weights."""
    with harness(tiny) as running:
        yield running


@pytest.fixture(scope="session")
def trained_plain(trained: Weights) -> Iterator[Harness]:
    with harness(trained) as running:
        yield running
