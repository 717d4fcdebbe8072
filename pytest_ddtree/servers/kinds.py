"""From the settings to the kind of server."""

from __future__ import annotations

from collections.abc import Callable

from pytest_ddtree.dialects.build import Build
from pytest_ddtree.dialects.reference import ReferenceDialect
from pytest_ddtree.servers.backend import Backend
from pytest_ddtree.servers.local import LocalBackend
from pytest_ddtree.servers.remote import UrlBackend
from pytest_ddtree.servers.settings import ServerSettings
from pytest_ddtree.servers.systemd import SystemdBackend


def backend(settings: ServerSettings, progress: Callable[[str], None]) -> Backend:
    """The backend of these settings. Raises ServerError when the build cannot be probed."""
    if settings.kind == "reference":
        return LocalBackend(settings, ReferenceDialect(), Build(), progress=progress)
    if settings.kind == "sglang":
        return LocalBackend(settings, progress=progress)
    if settings.kind == "url":
        return UrlBackend(settings)
    return SystemdBackend(settings, progress=progress)
