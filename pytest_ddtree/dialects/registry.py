"""All dialects, and which one a build speaks: by its flags and sources, or by a running server's own fields."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pytest_ddtree.dialects import custom, forks
from pytest_ddtree.dialects.base import Dialect, DialectError
from pytest_ddtree.dialects.build import Build
from pytest_ddtree.dialects.reference import ReferenceDialect
from pytest_ddtree.dialects.sglang import SglangDialect

DIALECTS: tuple[Dialect, ...] = (
    ReferenceDialect(),
    SglangDialect(),
    forks.DialectA(),
    forks.DialectB(),
    forks.DialectC(),
    forks.DialectD(),
    forks.DialectE(),
    forks.DialectF(),
    forks.DialectG(),
)


def by_name(name: str) -> Dialect:
    """The dialect of a name, or of a TOML file when the name is a path. Raises DialectError."""
    for dialect in DIALECTS:
        if dialect.name.lower() == name.lower():
            return dialect
    if name.endswith(".toml") or "/" in name:
        return custom.load(Path(name).expanduser())
    known = ", ".join(dialect.name for dialect in DIALECTS)
    raise DialectError(
        f"no dialect {name!r}: there are {known}, or the path of a .toml file that describes one"
    )


def of_build(build: Build) -> Dialect:
    """The dialect of a build, by the flags that its help lists and the variables that its sources name."""
    if build.has(forks.ENABLE):
        return by_name("D")
    if build.has(forks.TREE_WIDTH):
        return by_name("G")
    if build.has(forks.TREE_VERIFY):
        return by_name("F")
    if build.has(forks.BUDGET):
        if build.has("--use-tree-attention"):
            return by_name("C")
        # A and B have the same flags; only the sources tell whether the variable for topk would arrive anywhere.
        return by_name("B" if "SGLANG_DDTREE_MAX_TOPK" in build.env_names else "A")
    if "SGLANG_DFLASH_TREE_VERIFY" in build.env_names:
        return by_name("E")
    return by_name("dflash")


def of_server(server_info: Mapping[str, Any]) -> Dialect:
    """The dialect of a running server, by the fields that its `/server_info` has, and the variables that it tells.

    Of several the last one: B and C have the fields of A, and one more.
    """
    speakers = [dialect for dialect in DIALECTS if dialect.speaks(server_info)]
    return speakers[-1] if speakers else by_name("dflash")
