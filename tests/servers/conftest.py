"""Locks and records of these tests are their own: they neither wait for other runs on this host nor see what those left."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_ddtree.servers.lock import LOCK_DIR
from pytest_ddtree.servers.registry import STATE_DIR


@pytest.fixture(autouse=True)
def own_state(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A fresh folder for locks and launch records."""
    folder = tmp_path_factory.mktemp("state")
    monkeypatch.setenv(LOCK_DIR, str(folder))
    monkeypatch.setenv(STATE_DIR, str(folder))
    return folder
