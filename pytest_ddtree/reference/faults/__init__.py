"""Planted faults: one small class each, imitating bugs that were reported in public.

They exist so that the suite's own tests can prove that every kind of fault is noticed, and by the test meant for it.
"""

from __future__ import annotations

from .registry import catalogue, describe, plant
from .switch import Switch

__all__ = ["Switch", "catalogue", "describe", "plant"]
