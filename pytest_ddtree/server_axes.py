"""`--ddtree-axis`: the exactness of the same configs under other server arguments, each value a start of its own. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from pytest_ddtree.grid import Axis, Config
from pytest_ddtree.options import BY_FIELD, OptionError, Settings

NAMED = ("graphs", "pressure", "thinking")
"""Axes that are no flag of the server: what they stand for is below."""

EMBEDDED_LONG_OUTPUT, LONG_OUTPUT = 640, 2048
"""Tokens of the contract's longest answers on the embedded server, and on a real one."""


def make_axes(settings: Settings) -> tuple[Axis, ...]:
    """The values of `--ddtree-axis` that differ from the session's own, in the order given.

    Raises:
        OptionError: naming the item and what is allowed.
    """
    axes: list[Axis] = []
    for item in settings.axis:
        name, found, listed = item.partition("=")
        values = [value.strip() for value in listed.split(",")]
        name = name.strip().removeprefix("--")
        if not found or not re.fullmatch(r"[a-z][a-z0-9]*(-[a-z0-9]+)*", name) or not all(values):
            raise _refused(item, "takes NAME=VALUE,VALUE, such as page-size=1,64")
        for value in values:
            axis = _axis(settings, item, name, value)
            if axis is not None and axis in axes:
                raise _refused(item, f"names {value} twice")
            if axis is not None:
                axes.append(axis)
    return tuple(axes)


def under(axes: Iterable[Axis], configs: Sequence[Config]) -> tuple[Config, ...]:
    """Every config under every axis value, one axis at a time: a product would multiply the starts."""
    return tuple(config.under(axis) for axis in axes for config in configs)


def _axis(settings: Settings, item: str, name: str, value: str) -> Axis | None:
    """One value of an axis; None where it is what the session's own configs have anyway."""
    if not re.fullmatch(r"[\w.]+", value):
        raise _refused(item, f"has a value {value!r} that cannot be part of a test's name")
    if name in NAMED and value not in ("on", "off"):
        raise _refused(item, f"{name} takes on and off")
    if name == "graphs":
        return None if value == "on" else Axis(name, value, ("--disable-cuda-graph",))
    if name == "thinking":
        return None if value == settings.thinking else Axis(name, value, thinking=value == "on")
    if name == "pressure":
        return None if value == "off" else Axis(name, value, ("--max-total-tokens", str(_tight(settings))))
    if value == "on":
        return Axis(name, value, (f"--{name}",))
    return None if value == "off" else Axis(name, value, (f"--{name}", value))


def _tight(settings: Settings) -> int:
    """Tokens of a KV cache that holds the longest request of the contract, and few beside it: requests are retracted."""
    longest = EMBEDDED_LONG_OUTPUT if settings.server == "reference" else LONG_OUTPUT
    return -(-(max(settings.context) + longest + 64) * 5 // 4)


def _refused(item: str, text: str) -> OptionError:
    return OptionError(f"{BY_FIELD['axis'].flag} {item!r}: {text}")
