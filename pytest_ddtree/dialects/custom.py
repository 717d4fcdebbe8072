"""A dialect from a TOML file, for a fork that nobody here has seen.

```toml
name = "my-fork"
tree = "--speculative-algorithm MYTREE --my-budget {budget} --my-topk {topk}"
chain = "--speculative-algorithm DFLASH"          # optional: without it the build has no chain
window = "--my-window {window}"                   # added for a window; without it only `none` can be asked
block_size = "--my-block {block_size}"            # added for a block size of its own
baseline = "--disable-overlap-schedule"           # optional: the matched baseline; the best one gets nothing
verify_width = "budget + 1"                       # or "budget", or a plain number
topk = [4, 8]                                     # optional: the values that the build takes

[env]                                             # optional: environment of a tree
MY_TOPK = "{topk}"

[read]                                            # fields of /server_info (`add` corrects what they count)
budget = { field = "speculative_num_draft_tokens", add = -1 }
topk = { field = "my_topk" }
tree = { field = "my_tree", equals = true }       # how to know that a tree runs

[log]                                             # regular expressions with one group, for knobs that only the log shows
budget = "tree ready, budget (\\d+)"
```
Placeholders: {budget} {topk} {window} {block_size} {verify_width}. The draft model's flag is SGLang's own.
"""

from __future__ import annotations

import re
import shlex
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pytest_ddtree.dialects import serverinfo
from pytest_ddtree.dialects.base import DialectError, Launch, LaunchRequest
from pytest_ddtree.dialects.effective import UNKNOWN, EffectiveConfig, Value, from_values, merge
from pytest_ddtree.dialects.sglang import OVERLAP_OFF, SglangDialect
from pytest_ddtree.grid import Config

_TEXTS = ("name", "tree", "chain", "window", "block_size", "baseline", "verify_width", "about")
_TABLES = ("env", "read", "log")
_PLACES = frozenset({"budget", "topk", "window", "block_size", "verify_width"})
_READABLE = ("budget", "topk", "window", "block_size", "verify_width", "tree")


class CustomDialect(SglangDialect):
    """A build family described by its user."""

    tested = False

    def __init__(self, data: Mapping[str, Any], where: str) -> None:
        problems = _problems(data)
        if problems:
            raise DialectError(f"{where}:\n" + "\n".join(f"  - {problem}" for problem in problems))
        self.name = str(data.get("name", "custom"))
        self.about = str(data.get("about", f"described in {where}"))
        self.overlap = OVERLAP_OFF not in shlex.split(data.get("baseline", ""))
        self._data = data

    def arguments(self, config: Config, request: LaunchRequest) -> Launch:
        launch = super().arguments(config, request)
        if config.speculative or request.baseline == "best":
            return launch
        extra = [word for word in shlex.split(self._data.get("baseline", "")) if word not in launch.args]
        return Launch((*launch.args, *extra), launch.env)

    def chain_arguments(self, config: Config) -> list[str]:
        return [*_fill(self._data["chain"], self._places(config)), *self._block(config)]

    def tree_arguments(self, config: Config, request: LaunchRequest) -> list[str]:
        return [*_fill(self._data["tree"], self._places(config)), *self._block(config)]

    def tree_environment(self, config: Config) -> dict[str, str]:
        places = self._places(config)
        return {name: text.format_map(places) for name, text in self._data.get("env", {}).items()}

    def unsupported(self, config: Config, request: LaunchRequest) -> str | None:
        data = self._data
        if config.kind == "chain" and "chain" not in data:
            return f"dialect {self.name} has no `chain`"
        if config.kind == "tree" and "tree" not in data:
            return f"dialect {self.name} has no `tree`"
        if config.window is not None and "window" not in data:
            return f"dialect {self.name} has no `window`, so only window none can be asked"
        if config.block_size is not None and "block_size" not in data:
            return f"dialect {self.name} has no `block_size`"
        if config.topk is not None and "topk" in data and config.topk not in data["topk"]:
            return f"dialect {self.name} takes topk {', '.join(map(str, data['topk']))}, not {config.topk}"
        return None

    def asked_values(self, config: Config, request: LaunchRequest) -> dict[str, Value]:
        values = super().asked_values(config, request)
        if config.kind == "tree":
            values["verify_width"] = self._width(config)
        return values

    def effective(self, server_info: Mapping[str, Any], log_text: str) -> EffectiveConfig:
        found: dict[str, Value] = {}
        for knob, pattern in self._data.get("log", {}).items():
            if match := re.search(pattern, log_text):
                found[knob] = _number(match[1])
        return merge(super().effective(server_info, log_text), from_values("log", found))

    def speculation(self, server_info: Mapping[str, Any]) -> dict[str, Value]:
        values = serverinfo.chain(server_info)
        read = self._data.get("read", {})
        tree = read.get("tree")
        if tree is not None:
            on = server_info.get(tree["field"]) == tree.get("equals", True)
            if on:
                values["algorithm"] = "DDTREE"
        elif values.get("algorithm") not in {None, "none", "DFLASH"}:
            values["algorithm"] = "DDTREE"
        for knob, where in read.items():
            value = server_info.get(where["field"])
            if knob != "tree" and isinstance(value, int) and not isinstance(value, bool):
                values[knob] = value + where.get("add", 0)
        return values

    def window_arguments(self, config: Config, request: LaunchRequest) -> list[str]:
        return _fill(self._data["window"], self._places(config)) if config.window is not None else []

    def _block(self, config: Config) -> list[str]:
        return _fill(self._data["block_size"], self._places(config)) if config.block_size is not None else []

    def _width(self, config: Config) -> Value:
        text = str(self._data.get("verify_width", "budget + 1")).replace(" ", "")
        if config.budget is None:
            return UNKNOWN
        return int(text) if text.isdigit() else config.budget + (1 if text == "budget+1" else 0)

    def _places(self, config: Config) -> dict[str, Value]:
        return {
            "budget": config.budget,
            "topk": config.topk,
            "window": config.window,
            "block_size": config.block_size,
            "verify_width": self._width(config),
        }


def load(path: Path) -> CustomDialect:
    """The dialect of a TOML file. Raises DialectError with every problem found."""
    try:
        data = tomllib.loads(path.read_text())
    except OSError as error:
        raise DialectError(f"{path} cannot be read: {error.strerror}") from error
    except tomllib.TOMLDecodeError as error:
        raise DialectError(f"{path} is no TOML: {error}") from error
    return CustomDialect(data, str(path))


def _problems(data: Mapping[str, Any]) -> list[str]:
    known = {*_TEXTS, *_TABLES, "topk"}
    found = [f"unknown key {key!r}; known are {', '.join(sorted(known))}" for key in data if key not in known]
    found += [f"{key} must be a text" for key in _TEXTS if key in data and not isinstance(data[key], str)]
    found += [
        f"[{key}] must be a table" for key in _TABLES if key in data and not isinstance(data[key], dict)
    ]
    if "tree" not in data and "chain" not in data:
        found.append("neither `tree` nor `chain`: nothing can be asked of this build")
    if "topk" in data and not (
        isinstance(data["topk"], list) and all(isinstance(k, int) for k in data["topk"])
    ):
        found.append("topk must be a list of whole numbers")
    width = str(data.get("verify_width", "budget + 1")).replace(" ", "")
    if width not in {"budget", "budget+1"} and not width.isdigit():
        found.append(f"verify_width must be 'budget + 1', 'budget' or a number, not {data['verify_width']!r}")
    if found:
        return found
    texts = {key: data[key] for key in ("tree", "chain", "window", "block_size") if key in data}
    texts.update({f"env.{name}": str(text) for name, text in data.get("env", {}).items()})
    for key, text in texts.items():
        for place in re.findall(r"\{([^{}]*)\}", text):
            if place not in _PLACES:
                found.append(
                    f"{key}: unknown placeholder {{{place}}}; known are {', '.join(sorted(_PLACES))}"
                )
    for knob, where in data.get("read", {}).items():
        if knob not in _READABLE:
            found.append(f"read.{knob}: unknown; known are {', '.join(_READABLE)}")
        elif not isinstance(where, dict) or not isinstance(where.get("field"), str):
            found.append(f"read.{knob} must be a table with `field`")
    for knob, pattern in data.get("log", {}).items():
        try:
            groups = re.compile(pattern).groups
        except re.error as error:
            found.append(f"log.{knob}: {error}")
        else:
            if groups != 1:
                found.append(f"log.{knob}: needs exactly one group, has {groups}")
    return found


def _fill(template: str, places: Mapping[str, Value]) -> list[str]:
    return [word.format_map(places) for word in shlex.split(template)]


def _number(text: str) -> Value:
    return int(text) if text.lstrip("-").isdigit() else None if text == "None" else text
