"""Matters of the project itself; everything a user sees is in `pytest_ddtree.plugin`."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

pytest_plugins = ["pytester"]

# The machine that runs CI shares its cores: a deadline would measure its neighbours. In CI the examples are the same every time, so
# that a red build says something about the change; new ones are tried wherever people work.
settings.register_profile(
    "ddtree",
    deadline=None,
    derandomize="CI" in os.environ,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("ddtree")
