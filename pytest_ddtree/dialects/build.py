"""What is known of a build before it is started: the flags that its help lists, and where it comes from."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

_FLAG = re.compile(r"(?<![\w-])--[a-z][a-z0-9]*(?:-[a-z0-9]+)*")

ENV_KNOBS = (
    "SGLANG_DDTREE_MAX_TOPK",
    "SGLANG_DDTREE_FORCE_WIDTH",
    "SGLANG_DFLASH_TREE_VERIFY",
    "SGLANG_DFLASH_TREE_ALGO",
    "SGLANG_DFLASH_MAX_NUM_NODES",
)
"""Environment variables that tell forks apart whose flags are the same; looked for in a build's sources."""


@dataclass(frozen=True, slots=True)
class Build:
    """A server build, known by its flags and the environment variables its sources name.

    The version string identifies nothing (forks keep upstream's, or report `0.0.0.dev0`); `revision` is the source's git state.
    """

    flags: frozenset[str] = frozenset()
    env_names: frozenset[str] = frozenset()
    version: str | None = None
    revision: str | None = None

    def has(self, flag: str) -> bool:
        """Whether the build's help lists exactly this flag."""
        return flag in self.flags

    def first(self, names: Iterable[str]) -> str | None:
        """The first of several spellings that the build takes."""
        return next((name for name in names if name in self.flags), None)

    def listing(self, *words: str) -> str:
        """The flags that hold one of the words, for error texts; `none` if there are none."""
        found = sorted(flag for flag in self.flags if any(word in flag for word in words))
        return ", ".join(found) or "none"


def flags_of_help(text: str) -> frozenset[str]:
    """The long flags named in the output of `--help`; argparse breaks lines only between words, so each stands whole."""
    return frozenset(_FLAG.findall(text))
