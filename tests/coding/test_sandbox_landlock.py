"""Which files a solution may read: the standard library and shared libraries, never packages or data."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from pytest_ddtree.coding.sandbox.inner.landlock import Landlock, readable_paths
from pytest_ddtree.coding.sandbox.inner.syscalls import ARCHITECTURES


def tree(root: Path, *names: str) -> None:
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")


def test_packages_below_the_standard_library_are_left_out(tmp_path: Path) -> None:
    stdlib = tmp_path / "lib" / "python3"
    tree(
        stdlib,
        "os.py",
        "json/__init__.py",
        "__pycache__/os.pyc",
        "site-packages/answers.toml",
        "dist-packages/a.py",
    )
    found = set(readable_paths([str(stdlib), str(tmp_path / "missing.zip")], ""))
    assert found == {str(stdlib / name) for name in ("os.py", "json", "__pycache__")} | {"/etc/ld.so.cache"}


def test_libraries_are_granted_one_by_one(tmp_path: Path) -> None:
    tree(
        tmp_path, "libc.so.6", "libz.so", "python3/site-packages/answers.toml", "notes.txt", "x/libnested.so"
    )
    maps = (
        f"7f00-7f01 r-xp 00000000 08:01 123                        {tmp_path}/libc.so.6\n"
        "7f01-7f02 rw-p 00000000 00:00 0 \n"
        "7f03-7f04 rw-p 00000000 00:00 0                          [heap]\n"
        f"7f05-7f06 r--p 00000000 08:01 124                        {tmp_path}/notes.txt\n"
    )
    found = set(readable_paths([], maps))
    assert found == {str(tmp_path / "libc.so.6"), str(tmp_path / "libz.so"), "/etc/ld.so.cache"}


def test_a_library_with_a_space_in_its_path(tmp_path: Path) -> None:
    folder = tmp_path / "with space"
    tree(folder, "libx.so")
    maps = f"7f00-7f01 r-xp 00000000 08:01 123                        {folder}/libx.so\n"
    assert str(folder / "libx.so") in set(readable_paths([], maps))


RESTRICT = """
import os, platform, sys
from pytest_ddtree.coding.sandbox.inner import lockdown
from pytest_ddtree.coding.sandbox.inner.landlock import Landlock
from pytest_ddtree.coding.sandbox.inner.syscalls import ARCHITECTURES
lockdown.forbid_new_privileges()
Landlock(ARCHITECTURES[platform.machine()]).restrict_reading_to([sys.argv[1], sys.argv[1] + "/nothing"])
print(open(sys.argv[1] + "/allowed").read())
for path, mode in ((sys.argv[2], "r"), (sys.argv[1] + "/allowed", "w"), (sys.argv[1] + "/new", "w")):
    try:
        open(path, mode)
    except PermissionError:
        print("refused")
"""


def test_the_kernel_enforces_it(tmp_path: Path) -> None:
    import platform

    try:
        Landlock(ARCHITECTURES[platform.machine()]).abi()
    except (OSError, KeyError) as error:
        pytest.skip(f"no Landlock here: {error}")
    tree(tmp_path, "in/allowed", "out")
    (tmp_path / "in" / "allowed").write_text("content")
    project = Path(__file__).parents[2]
    command = [sys.executable, "-c", RESTRICT, str(tmp_path / "in"), str(tmp_path / "out")]
    done = subprocess.run(command, cwd=project, capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["content", "refused", "refused", "refused"], done.stderr
