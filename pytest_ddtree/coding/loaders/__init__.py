"""Problem files in, problems out (formats: docs/problems.md)."""

from __future__ import annotations

from pytest_ddtree.coding.loaders.load import load_problems

__all__ = ["load_problems"]
