"""The dialect that the user chose by name, if any."""

from __future__ import annotations

from pytest_ddtree.dialects import registry
from pytest_ddtree.dialects.base import Dialect, DialectError
from pytest_ddtree.servers.errors import ConfigNotSupported
from pytest_ddtree.servers.settings import ServerSettings


def dialect(settings: ServerSettings) -> Dialect | None:
    """The dialect of `--ddtree-dialect`, None without it. Raises ConfigNotSupported for one that does not exist or has mistakes."""
    if settings.dialect is None:
        return None
    try:
        return registry.by_name(settings.dialect)
    except DialectError as error:
        raise ConfigNotSupported(
            f"--ddtree-dialect {settings.dialect} cannot be used", why=str(error)
        ) from error
