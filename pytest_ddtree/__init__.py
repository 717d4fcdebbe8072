"""Benchmarks, exactness proofs and a coding eval for DFlash/DDTree servers, as pytest suites."""

from __future__ import annotations

__version__ = "0.1.0"
__all__ = ["__version__"]
