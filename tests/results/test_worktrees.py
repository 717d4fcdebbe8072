"""Worktrees of builds: made at the right revision, and gone afterwards, whatever ended the session."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pytest_ddtree.worktrees import OWNER, NoWorktree, Worktrees


def git(source: Path, *words: str) -> str:
    command = ["git", "-C", str(source), "-c", "user.name=n", "-c", "user.email=e@e", *words]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "a checkout"
    path.mkdir()
    git(path, "init", "-q", "-b", "main")
    for text in ("one", "two"):
        (path / "a.py").write_text(f"x = '{text}'\n")
        git(path, "add", ".")
        git(path, "commit", "-qm", text)
    return path


def known(source: Path) -> int:
    """Worktrees that git knows beside the checkout itself."""
    return len(git(source, "worktree", "list").splitlines()) - 1


def gone(folder: Path) -> bool:
    deadline = time.monotonic() + 60
    while folder.exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    return not folder.exists()


def test_each_has_its_revision_and_all_are_removed(tmp_path: Path, source: Path) -> None:
    folder = tmp_path / "run" / "worktrees"
    trees = Worktrees(source, folder)
    old, new = trees.add("base", "HEAD~1"), trees.add("patched", "main")
    assert (old / "a.py").read_text() == "x = 'one'\n"
    assert (new / "a.py").read_text() == "x = 'two'\n"
    # What a build leaves in its tree does not keep it there.
    (new / "__pycache__").mkdir()
    (new / "__pycache__" / "a.pyc").write_bytes(b"x")
    trees.close()
    trees.close()
    assert not folder.exists()
    assert known(source) == 0
    assert git(source, "status", "--porcelain") == ""


def test_what_git_refuses_is_said(tmp_path: Path, source: Path) -> None:
    trees = Worktrees(source, tmp_path / "worktrees")
    try:
        with pytest.raises(NoWorktree, match="no-such-branch"):
            trees.add("base", "no-such-branch")
    finally:
        trees.close()
    with pytest.raises(NoWorktree, match="is no git checkout"):
        Worktrees(tmp_path, tmp_path / "worktrees")


OWNING = """
import sys, time
from pathlib import Path
from pytest_ddtree.worktrees import Worktrees

trees = Worktrees(Path(sys.argv[1]), Path(sys.argv[2]))
trees.add("base", "HEAD~1")
print(trees._watcher.pid, flush=True)
time.sleep(600)
"""


@contextmanager
def owner(source: Path, folder: Path) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """A session with a worktree, and the process id of its watcher."""
    process = subprocess.Popen(
        [sys.executable, "-c", OWNING, str(source), str(folder)], stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        yield process, int(process.stdout.readline())
    finally:
        process.kill()
        process.communicate()


def test_they_are_removed_after_sigkill(tmp_path: Path, source: Path) -> None:
    folder = tmp_path / "worktrees"
    with owner(source, folder):
        assert known(source) == 1
    assert gone(folder)
    assert known(source) == 0


def test_where_the_watcher_was_killed_too_the_next_session_removes_them(tmp_path: Path, source: Path) -> None:
    folder = tmp_path / "worktrees"
    with owner(source, folder) as (_, watcher):
        os.kill(watcher, signal.SIGKILL)
    assert (folder / "base").is_dir()
    mine = tmp_path / "mine"
    git(source, "worktree", "add", "--detach", str(mine), "main")
    Worktrees(source, tmp_path / "next").close()
    assert not folder.exists()
    # A worktree that somebody else made stays.
    assert mine.is_dir()
    assert known(source) == 1


def test_a_session_that_lives_keeps_its_worktrees(tmp_path: Path, source: Path) -> None:
    first = Worktrees(source, tmp_path / "first")
    kept = first.add("base", "main")
    Worktrees(source, tmp_path / "second").close()
    assert kept.is_dir()
    assert (tmp_path / "first" / OWNER).exists()
    first.close()
    assert not kept.exists()
