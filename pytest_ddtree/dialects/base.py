"""What a dialect is: the one place that knows how a build spells budget, topk, window and block size."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from pytest_ddtree.dialects import logscan, serverinfo
from pytest_ddtree.dialects.build import Build
from pytest_ddtree.dialects.effective import UNKNOWN, EffectiveConfig, Value, from_values, merge
from pytest_ddtree.grid import Config, verify_width

BaselineKind = Literal["matched", "best"]

DEFAULT_RUNNING = 48
"""What SGLang silently sets for speculation where nothing is asked; the other server would have thousands."""


class DialectError(ValueError):
    """A config that the build cannot express; the text says what it has instead."""


@dataclass(frozen=True, slots=True)
class Launch:
    """What a dialect adds to a server's command line and environment for one config."""

    args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchRequest:
    """What a dialect must know to spell a config.

    `block_size` is the draft checkpoint's own (None: not at hand). `max_concurrency` is the largest concurrency the session will
    send. `server_args` are the user's arguments for every server: what they set, no dialect sets again.
    """

    model: str
    draft_model: str | None = None
    block_size: int | None = None
    max_concurrency: int | None = None
    seed: int | None = None
    baseline: BaselineKind = "matched"
    server_args: Sequence[str] = ()
    spec_args: Sequence[str] = ()
    baseline_args: Sequence[str] = ()
    build: Build = field(default_factory=Build)


class Dialect(ABC):
    """One build family. Stateless: everything it needs comes as arguments."""

    name: str
    tested: bool
    """Whether tests pin it to captured answers or to a stand-in with that build's flags; False: written from documents alone."""
    about: str
    """One line for `doctor`: which builds speak it."""

    @abstractmethod
    def arguments(self, config: Config, request: LaunchRequest) -> Launch:
        """Arguments and environment of one config (model and port are not among them). Raises DialectError."""

    def unsupported(self, config: Config, request: LaunchRequest) -> str | None:
        """Why this build cannot run the config, in words that list what it has; None when it can."""
        del config, request
        return None

    def asked(self, config: Config, request: LaunchRequest) -> EffectiveConfig:
        """The knobs that the server must have in force for this config."""
        return from_values("asked", self.asked_values(config, request))

    def asked_values(self, config: Config, request: LaunchRequest) -> dict[str, Value]:
        """The canonical knobs of `config`; a dialect overrides what means something else in its build."""
        return {
            **_asked_of(config, request),
            **asked_by_flags((*request.server_args, *self._own(config, request))),
        }

    def effective(self, server_info: Mapping[str, Any], log_text: str) -> EffectiveConfig:
        """The config in force, from `/server_info` and the log."""
        values = serverinfo.values(server_info)
        values.update(self.speculation(server_info))
        seen, warnings = logscan.scan(log_text)
        if isinstance(own := seen.get("max_running_requests"), int):
            seen["max_running_requests"] = serverinfo.as_asked(own, server_info)
        return merge(from_values("http", values), from_values("log", self.log_values(seen), warnings))

    def speculation(self, server_info: Mapping[str, Any]) -> dict[str, Value]:
        """Algorithm, budget, width, topk of `/server_info` in this build's meaning. Here: the plain DFlash chain."""
        return serverinfo.chain(server_info)

    def log_values(self, seen: Mapping[str, Value]) -> dict[str, Value]:
        """What the log's raw findings mean in this build."""
        return {name: value for name, value in seen.items() if not name.startswith("raw_")}

    def speaks(self, server_info: Mapping[str, Any]) -> bool:
        """Whether a running server's `/server_info` carries this dialect's own fields."""
        del server_info
        return False

    def _own(self, config: Config, request: LaunchRequest) -> Sequence[str]:
        return request.spec_args if config.speculative else request.baseline_args


def _asked_of(config: Config, request: LaunchRequest) -> dict[str, Value]:
    if config.kind == "baseline":
        return {"algorithm": "none"}
    values: dict[str, Value] = {
        "algorithm": "DDTREE" if config.kind == "tree" else "DFLASH",
        "window": config.window,
        "compact_cache": config.window is not None,
    }
    size = config.block_size or request.block_size
    if size is not None:
        values["block_size"] = size
        values["verify_width"] = verify_width(config, size)
    if config.kind == "tree":
        values["budget"] = config.budget
        values["topk"] = config.topk
    return values


_FLAG_KNOBS: dict[str, tuple[str, type]] = {
    "--attention-backend": ("attention_backend", str),
    "--prefill-attention-backend": ("prefill_attention_backend", str),
    "--decode-attention-backend": ("decode_attention_backend", str),
    "--speculative-draft-attention-backend": ("draft_attention_backend", str),
    "--page-size": ("page_size", int),
    "--max-running-requests": ("max_running_requests", int),
    "--mem-fraction-static": ("mem_fraction", float),
    "--context-length": ("context_length", int),
    "--random-seed": ("seed", int),
}
_SWITCH_KNOBS: dict[str, tuple[str, bool]] = {
    "--disable-radix-cache": ("radix_cache", False),
    "--disable-overlap-schedule": ("overlap", False),
    "--disable-cuda-graph": ("cuda_graph", False),
    "--enable-deterministic-inference": ("deterministic", True),
    "--incremental-streaming-output": ("incremental_streaming", True),
}


def asked_by_flags(args: Sequence[str]) -> dict[str, Value]:
    """The knobs that plain SGLang arguments ask for; a flag given twice counts the last time, as argparse has it."""
    values: dict[str, Value] = {}
    position = 0
    while position < len(args):
        flag, given, attached = args[position].partition("=")
        position += 1
        if flag in _SWITCH_KNOBS:
            name, state = _SWITCH_KNOBS[flag]
            values[name] = state
        elif flag in _FLAG_KNOBS:
            name, kind = _FLAG_KNOBS[flag]
            if not given:
                if position >= len(args):
                    break
                attached = args[position]
                position += 1
            try:
                values[name] = kind(attached)
            except ValueError:
                # The server refuses it with its own words.
                values[name] = UNKNOWN
    return values


def given(args: Sequence[str], *flags: str) -> bool:
    """Whether the user's arguments hold one of these flags, alone or as `--flag=value`."""
    return any(arg.partition("=")[0] in flags for arg in args)


def value(args: Sequence[str], flag: str) -> str | None:
    """What a flag has among the user's arguments, as `--flag v` or `--flag=v`; the last one counts, as argparse has it."""
    found = None
    for position, arg in enumerate(args):
        name, sign, attached = arg.partition("=")
        if name == flag:
            found = attached if sign else next(iter(args[position + 1 : position + 2]), None)
    return found
