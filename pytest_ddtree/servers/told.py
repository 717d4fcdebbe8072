"""Reading what servers tell of themselves. They leave fields out, or send null."""

from __future__ import annotations


def whole(value: object) -> int | None:
    """The value if it is a whole number."""
    return value if isinstance(value, int) and not isinstance(value, bool) else None
