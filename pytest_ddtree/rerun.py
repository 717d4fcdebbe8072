"""The command that does once more what a session did to one config: its options, narrowed to that config. Pure."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pytest_ddtree.grid import CHAIN, Config
from pytest_ddtree.options import BY_FIELD

GRID_FIELDS = ("budget", "topk", "window", "block_size", "where")
OWN_FIELDS = (
    *("resume", "html", "expected", "update_expected", "update_new", "accept_drift", "headline", "gates"),
    *("build", "fuzz", "trace", "axis"),
)
"""What a reproduction must not repeat: it writes no figures, compares none, and does nothing but its trace."""
SECRET_FIELDS = ("api_key",)


@dataclass(frozen=True, slots=True)
class Rerun:
    """`given` holds what the user set: field -> (text, source); options of the ini file hold again where pytest finds it again."""

    given: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    here: Path = field(default_factory=Path)
    """The directory in which the session runs; the command is for the same one."""

    def command(self, config: Config, trace: Path) -> str:
        """One line that runs a saved trace on a config like this one, its own server arguments among those of the speculative servers."""
        own = () if config.axis is None else config.axis.arguments
        words = [
            "pytest",
            *_suite(self.here),
            "-m",
            "exactness",
            _option("trace", _relative(trace, self.here)),
        ]
        for name, (text, source) in self.given.items():
            if name in GRID_FIELDS or name in OWN_FIELDS or source != "command line":
                continue
            if (name == "spec_args" and own) or (
                name == "thinking" and config.axis is not None and config.axis.thinking is not None
            ):
                continue
            words += _words(name, text)
        if own:
            before = self.given.get("spec_args", ("", ""))[0]
            words.append(_option("spec_args", f"{before} {shlex.join(own)}".strip()))
        if config.axis is not None and config.axis.thinking is not None:
            words.append(_option("thinking", "on" if config.axis.thinking else "off"))
        words += config_options(config)
        return " ".join(word if word.startswith("--ddtree-api-key=") else shlex.quote(word) for word in words)


def config_options(config: Config) -> list[str]:
    """The options that make the grid this one config."""
    if config.kind == "baseline":
        return []
    words = [_option("budget", CHAIN if config.kind == "chain" else str(config.budget))]
    if config.kind == "tree":
        words.append(_option("topk", str(config.topk)))
    words.append(_option("window", "none" if config.window is None else str(config.window)))
    if config.block_size is not None:
        words.append(_option("block_size", str(config.block_size)))
    return words


def _words(name: str, text: str) -> list[str]:
    option = BY_FIELD[name]
    if option.switch:
        return [option.flag] if option.parse(text) else []
    if name in SECRET_FIELDS:
        return [f'{option.flag}="$API_KEY"']
    return [_option(name, part) for part in (text.split("\n") if option.repeatable else [text])]


def _option(name: str, text: str) -> str:
    return f"{BY_FIELD[name].flag}={text}"


def _suite(here: Path) -> list[str]:
    """How pytest finds the plugin's own tests from `here`: by package where it is installed, by path in a checkout."""
    package = Path(__file__).parent
    if (package / "suites" / "bench").is_dir():
        return ["--pyargs", "pytest_ddtree.suites"]
    return [_relative(package.parent / "bench", here)]


def _relative(path: Path, here: Path) -> str:
    """The shorter of the two ways to write a path."""
    return min(os.path.relpath(path, here), str(Path(path).absolute()), key=len)
