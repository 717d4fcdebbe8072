"""Whether the servers of all builds can be up at the same time (`--ddtree-ab-at-once`): memory and ports. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from pytest_ddtree.dialects.base import given, value
from pytest_ddtree.options import Settings
from pytest_ddtree.results.builds import BuildError, BuildSpec

FRACTION, TOKENS = "--mem-fraction-static", "--max-total-tokens"
"""What keeps an SGLang server from taking a GPU's whole memory."""


def check_sharing(settings: Settings, builds: Sequence[BuildSpec]) -> None:
    """Refuse builds that cannot be up at once as they were asked for.

    Raises:
        BuildError: a server that would take the memory of the others, or two builds with the same port.
    """
    if settings.ab_at_once:
        if settings.server == "sglang":
            _check_memory(settings, builds)
        _check_ports(settings, builds)


def _servers(settings: Settings, build: BuildSpec) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The user's arguments of a build's baseline and of its speculative servers; the last of equals counts."""
    common = (*settings.server_args, *build.arguments)
    return (*common, *settings.baseline_args), (*common, *settings.spec_args)


def _check_memory(settings: Settings, builds: Sequence[BuildSpec]) -> None:
    most = 1 / len(builds)
    greedy = [
        build.name
        for build in builds
        if not all(given(one, FRACTION, TOKENS) for one in _servers(settings, build))
    ]
    if greedy:
        raise BuildError(
            "--ddtree-ab-at-once has the servers of all builds on the same GPU at once, and each takes nearly all of its memory: add "
            f"{FRACTION} (at most 1 / {len(builds)}) or {TOKENS} to --ddtree-server-args (no such argument: {', '.join(greedy)})"
        )
    for build in builds:
        for one in _servers(settings, build):
            fraction = 0.0
            # What is no number is refused by the engine, with its own words.
            with suppress(TypeError, ValueError):
                fraction = float(str(value(one, FRACTION)))
            if fraction > most and not given(one, TOKENS):
                raise BuildError(
                    f"--ddtree-ab-at-once has the servers of all {len(builds)} builds on the same GPU at once, and {build.name} would take "
                    f"{fraction:g} of its free memory ({FRACTION}): at most 1 / {len(builds)} each, or give {TOKENS} too, which says how "
                    "large a cache is"
                )


def _check_ports(settings: Settings, builds: Sequence[BuildSpec]) -> None:
    taken: dict[str, str] = {}
    for build in builds:
        for port in {value(one, "--port") for one in _servers(settings, build)} - {None}:
            other = taken.setdefault(str(port), build.name)
            if other != build.name:
                raise BuildError(
                    f"--ddtree-ab-at-once has the servers of {other} and {build.name} up at once, and both would have port {port}: leave "
                    "--port out (each server gets a free one), or give each build its own with args:"
                )
