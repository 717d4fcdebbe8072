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

from pytest_ddtree.dialects import described, serverinfo
from pytest_ddtree.dialects.base import DialectError, Launch, LaunchRequest
from pytest_ddtree.dialects.described import fill
from pytest_ddtree.dialects.effective import UNKNOWN, EffectiveConfig, Value, from_values, merge
from pytest_ddtree.dialects.sglang import OVERLAP_OFF, SglangDialect
from pytest_ddtree.grid import Config


class CustomDialect(SglangDialect):
    """A build family described by its user."""

    tested = False

    def __init__(self, data: Mapping[str, Any], where: str) -> None:
        if problems := described.problems(data):
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
        return [*fill(self._data["chain"], self._places(config)), *self._block(config)]

    def tree_arguments(self, config: Config, request: LaunchRequest) -> list[str]:
        return [*fill(self._data["tree"], self._places(config)), *self._block(config)]

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
        return self._lacking(config)

    def _lacking(self, config: Config) -> str | None:
        """Why no words can be made for a config that has no value for what stands in them; None where they can."""
        templates = {
            key: self._data[key] for key in ("window", "block_size") if getattr(config, key) is not None
        }
        if config.speculative:
            templates[config.kind] = self._data[config.kind]
        if config.kind == "tree":
            templates |= {f"env.{name}": text for name, text in self._data.get("env", {}).items()}
        places = self._places(config)
        for key, text in templates.items():
            for place in sorted(described.needed(text)):
                if places[place] is None or places[place] is UNKNOWN:
                    return f"dialect {self.name} has {{{place}}} in `{key}`, and {config.id} has none"
        return None

    def asked_values(self, config: Config, request: LaunchRequest) -> dict[str, Value]:
        values = super().asked_values(config, request)
        if config.kind == "tree":
            values["verify_width"] = self._width(config)
        return values

    def effective(self, server_info: Mapping[str, Any], log_text: str) -> EffectiveConfig:
        found: dict[str, Value] = {}
        for knob, pattern in self._data.get("log", {}).items():
            # Each rank and each start writes it: the last one counts, as of everything that is read from a log.
            said = [match[1] for match in re.finditer(pattern, log_text) if match[1] is not None]
            if said:
                found[knob] = _value(said[-1])
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
        return fill(self._data["window"], self._places(config)) if config.window is not None else []

    def _block(self, config: Config) -> list[str]:
        return fill(self._data["block_size"], self._places(config)) if config.block_size is not None else []

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
        data = tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise DialectError(f"{path} cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise DialectError(f"{path} is no TOML: {error}") from error
    return CustomDialect(data, str(path))


def _value(text: str) -> Value:
    """What a log has written, as the kind of value that is asked for: a switch, a number, None, or a word."""
    if text in {"True", "False", "None"}:
        return {"True": True, "False": False}.get(text)
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
