"""Matters of the project itself; everything a user sees is in `pytest_ddtree.plugin`."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

pytest_plugins = ["pytester"]

# The machine that runs CI shares its cores: a deadline would measure its neighbours.
settings.register_profile("ddtree", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("ddtree")
