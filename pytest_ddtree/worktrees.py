"""Worktrees of a checkout for the time of one session; a watcher removes them, whatever ends the session, SIGKILL included.

Run as a script it is the watcher: `worktrees.py CHECKOUT FOLDER` waits until its standard input ends, which the kernel sees to when
the session is gone, and then removes every worktree in FOLDER. It imports nothing but the standard library.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

OWNER = ".owner"
"""A file beside the worktrees: pid and start time of the session that they belong to."""


class NoWorktree(Exception):
    """git made no worktree; the text says why."""


class Worktrees:
    """The worktrees of one session, all in one folder."""

    def __init__(self, checkout: Path, folder: Path) -> None:
        """Raises NoWorktree where `checkout` is none."""
        self._checkout = checkout.resolve()
        self._folder = folder.resolve()
        said = git(self._checkout, "rev-parse", "--git-dir")
        if said is not None:
            raise NoWorktree(f"{checkout} is no git checkout: {said}")
        for left in abandoned(self._checkout):
            remove(self._checkout, left)
        self._folder.mkdir(parents=True, exist_ok=True)
        (self._folder / OWNER).write_text(f"{os.getpid()} {started(os.getpid())}\n")
        # A session of its own, so that Ctrl-C in the terminal does not end the watcher before its work.
        self._watcher = subprocess.Popen(
            [sys.executable, "-I", __file__, str(self._checkout), str(self._folder)],
            stdin=subprocess.PIPE,
            start_new_session=True,
        )

    def add(self, name: str, revision: str) -> Path:
        """The folder of a new worktree at this revision. Raises NoWorktree."""
        path = self._folder / name
        said = git(self._checkout, "worktree", "add", "--detach", str(path), revision)
        if said is not None:
            raise NoWorktree(f"no worktree of {revision} in {self._checkout}: {said}")
        return path

    def close(self) -> None:
        """Remove all of them. May be called twice."""
        assert self._watcher.stdin is not None
        self._watcher.stdin.close()
        self._watcher.wait()


def abandoned(checkout: Path) -> list[Path]:
    """Folders of worktrees whose session is gone and whose watcher was killed with it."""
    listed = subprocess.run(
        ["git", "-C", str(checkout), "worktree", "list", "--porcelain", "-z"],
        capture_output=True,
        check=False,
    )
    paths = [
        Path(os.fsdecode(field.removeprefix(b"worktree ")))
        for field in listed.stdout.split(b"\0")
        if field.startswith(b"worktree ")
    ]
    return sorted({path.parent for path in paths if _orphaned(path.parent / OWNER)})


def _orphaned(owner: Path) -> bool:
    try:
        pid, since = owner.read_text().split()
    except (OSError, ValueError):
        return False
    return started(int(pid)) != since


def started(pid: int) -> str:
    """The start time of a process in clock ticks since the boot, empty when there is none: a pid alone is used again."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return ""
    return stat.rpartition(")")[2].split()[19]


def remove(checkout: Path, folder: Path) -> None:
    """Remove every worktree in a folder, then the folder."""
    for path in sorted(folder.iterdir()) if folder.is_dir() else []:
        if path.is_dir():
            said = git(checkout, "worktree", "remove", "--force", "--force", str(path))
            if said is not None:
                print(f"worktree {path} could not be removed: {said}", file=sys.stderr)
    git(checkout, "worktree", "prune")
    (folder / OWNER).unlink(missing_ok=True)
    try:
        folder.rmdir()
    except OSError:
        return


def git(checkout: Path, *words: str) -> str | None:
    """Run git; None when it worked, else what it said."""
    done = subprocess.run(
        ["git", "-C", str(checkout), *words], capture_output=True, text=True, errors="replace", check=False
    )
    return None if done.returncode == 0 else (done.stderr.strip() or f"exit code {done.returncode}")


def watch(checkout: Path, folder: Path) -> None:
    """Wait until whoever started this is gone or says so, then remove."""
    while sys.stdin.buffer.read(4096):
        pass
    remove(checkout, folder)


if __name__ == "__main__":
    watch(Path(sys.argv[1]), Path(sys.argv[2]))
