"""Which sources a server runs: the git state of a checkout, exact enough to tell two patched trees apart."""

from __future__ import annotations

import hashlib
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class SourceState:
    """A checkout's revision, whether it is changed, and a hash of what is changed (untracked Python files included).

    What cannot be read counts as changed, without a hash: the revision alone does not say what runs.
    """

    path: Path
    revision: str | None = None
    branch: str | None = None
    dirty: bool = False
    diff_sha256: str | None = None

    @property
    def label(self) -> str:
        """`1a2b3c4d5e6f`, with `+` and the start of the diff's hash when the tree is changed; the path outside git."""
        if self.revision is None:
            return str(self.path)
        return self.revision[:12] + (f"+{(self.diff_sha256 or '?')[:8]}" if self.dirty else "")


def state(path: Path) -> SourceState:
    """The git state of the checkout that `path` is part of; without git or outside a checkout, the path alone.

    A folder that lies in a checkout and has nothing in its revision, such as an environment in a project, is none of its parts.
    """
    revision = _git(path, "rev-parse", "HEAD")
    if revision is None or not _git(path, "ls-tree", "--name-only", "HEAD"):
        return SourceState(path)
    branch = (_git(path, "rev-parse", "--abbrev-ref", "HEAD") or "").strip() or None
    # Nothing of how the user likes to see a diff.
    diff = _git(path, "diff", "HEAD", "--binary", "--no-ext-diff", "--no-textconv", "--no-color")
    listed = _git(path, "ls-files", "-z", "--others", "--exclude-standard", "--full-name", "--", "*.py")
    if diff is None or listed is None:
        return SourceState(path, revision.strip(), branch, True)
    top = Path((_git(path, "rev-parse", "--show-toplevel") or str(path)).strip())
    new = sorted(name for name in listed.split("\0") if name)
    if not diff and not new:
        return SourceState(path, revision.strip(), branch)
    digest = hashlib.sha256(diff.encode())
    for name in new:
        digest.update(name.encode() + b"\0")
        try:
            digest.update((top / name).read_bytes())
        except OSError:
            digest.update(b"unreadable")
    return SourceState(path, revision.strip(), branch, True, digest.hexdigest())


def stamp(path: Path) -> str:
    """A hash of the names, sizes and times of all Python files under `path`: another one as soon as a file was edited."""
    digest = hashlib.sha256()
    for folder, below, names in os.walk(path):
        below.sort()
        for name in sorted(names):
            if name.endswith(".py"):
                file = os.path.join(folder, name)
                try:
                    found = os.stat(file)
                except OSError:
                    continue
                digest.update(f"{file}\0{found.st_size}\0{found.st_mtime_ns}\n".encode())
    return digest.hexdigest()


def _git(path: Path, *args: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(path), *args],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=30,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None
