"""Upstream SGLang: the DFlash chain, 0.5.11 to 0.5.23, with each release's own flag names found by probing."""

from __future__ import annotations

from pytest_ddtree.dialects.base import (
    DEFAULT_RUNNING,
    Dialect,
    DialectError,
    Launch,
    LaunchRequest,
    given,
)
from pytest_ddtree.dialects.effective import UNKNOWN, Value
from pytest_ddtree.grid import Config

WINDOW_FLAGS = ("--speculative-draft-window-size", "--speculative-dflash-draft-window-size")
"""Newest first: the second until 0.5.11, an alias until 0.5.19, gone since."""
GRAPH_FLAGS = ("--cuda-graph-max-bs-decode", "--cuda-graph-max-bs")
"""Newest first: the second until 0.5.13, an alias until 0.5.19, gone since."""
METRICS = "--enable-metrics"
OVERLAP_OFF = "--disable-overlap-schedule"


class SglangDialect(Dialect):
    """What every SGLang has in common; a build family adds how a tree is asked for."""

    name = "dflash"
    tested = True
    about = "upstream SGLang 0.5.11 to 0.5.23: the DFlash chain"

    overlap: bool | None = None
    """Whether the speculative server overlaps scheduling: True, False, or None: as the release does (since 0.5.14)."""
    page_size_one = False
    """Whether a tree needs --page-size 1."""

    def arguments(self, config: Config, request: LaunchRequest) -> Launch:
        if (why := self.unsupported(config, request)) is not None:
            raise DialectError(why)
        args = self._conditions(config, request)
        if not config.speculative:
            return Launch(tuple(args), _PROOF)
        if request.draft_model is not None and not given(
            (*request.server_args, *request.spec_args),
            "--speculative-draft-model-path",
            "--speculative-draft-model",
        ):
            args += ["--speculative-draft-model-path", request.draft_model]
        args += (
            self.tree_arguments(config, request) if config.kind == "tree" else self.chain_arguments(config)
        )
        args += self.window_arguments(config, request)
        env = self.tree_environment(config) if config.kind == "tree" else {}
        return Launch(tuple(args), {**_PROOF, **env})

    def chain_arguments(self, config: Config) -> list[str]:
        """The plain DFlash chain."""
        args = ["--speculative-algorithm", "DFLASH"]
        if config.block_size is not None:
            args += ["--speculative-num-draft-tokens", str(config.block_size)]
        return args

    def tree_arguments(self, config: Config, request: LaunchRequest) -> list[str]:
        """How this family asks for a tree. Raises DialectError where it has none."""
        raise DialectError(self.no_tree(request))

    def tree_environment(self, config: Config) -> dict[str, str]:
        """Environment variables that a tree needs in this family."""
        del config
        return {}

    def no_tree(self, request: LaunchRequest) -> str:
        """Why there is no tree here, with what the build has."""
        return (
            "this build has the DFlash chain only: DDTree lives in forks. Ask for --ddtree-budget chain, or choose the fork with "
            f"--ddtree-python or --ddtree-sglang-src. Its speculative flags: {request.build.listing('speculative')}"
        )

    def unsupported(self, config: Config, request: LaunchRequest) -> str | None:
        if config.window is not None and request.build.flags and request.build.first(WINDOW_FLAGS) is None:
            return f"this build has no flag for the draft window; it has: {request.build.listing('window')}"
        if config.kind == "tree":
            return self.unsupported_tree(config, request)
        return None

    def unsupported_tree(self, config: Config, request: LaunchRequest) -> str | None:
        """Why this family cannot run this tree; None when it can."""
        del config
        return self.no_tree(request)

    def asked_values(self, config: Config, request: LaunchRequest) -> dict[str, Value]:
        values = super().asked_values(config, request)
        values.setdefault("max_running_requests", _running(request))
        if self._overlap_off(config, request):
            values["overlap"] = False
        if self.page_size_one:
            values.setdefault("page_size", 1)
        # A server that relaxes acceptance is not exact whatever it answers.
        if config.speculative:
            values["accept_threshold_single"] = 1.0
            values["accept_threshold_acc"] = 1.0
        values["auto_truncate"] = False
        return values

    def _conditions(self, config: Config, request: LaunchRequest) -> list[str]:
        """What both servers of a comparison must have alike, unless the user says otherwise."""
        user = (*request.server_args, *self._own(config, request))
        args: list[str] = []
        if not given(user, "--max-running-requests"):
            args += ["--max-running-requests", str(_running(request))]
        if request.build.has(METRICS) and not given(user, METRICS):
            args.append(METRICS)
        graph = request.build.first(GRAPH_FLAGS)
        by_hand = (
            *GRAPH_FLAGS,
            "--cuda-graph-bs",
            "--cuda-graph-bs-decode",
            "--cuda-graph-config",
            "--disable-cuda-graph",
        )
        if graph is not None and request.max_concurrency is not None and not given(user, *by_hand):
            args += [graph, str(request.max_concurrency)]
        if self.page_size_one and not given(user, "--page-size"):
            args += ["--page-size", "1"]
        if self._overlap_off(config, request) and not given(user, OVERLAP_OFF):
            args.append(OVERLAP_OFF)
        return args

    def _overlap_off(self, config: Config, request: LaunchRequest) -> bool:
        user = (*request.server_args, *self._own(config, request))
        if given(user, OVERLAP_OFF):
            return True
        if not config.speculative and request.baseline == "best":
            return False
        if self.overlap is None:
            # DFlash overlaps since 0.5.14, the release that renamed the graph flags.
            return bool(request.build.flags) and not request.build.has(GRAPH_FLAGS[0])
        return not self.overlap

    def window_arguments(self, config: Config, request: LaunchRequest) -> list[str]:
        """The draft window in this release's spelling; nothing for the full context."""
        if config.window is None:
            return []
        return [request.build.first(WINDOW_FLAGS) or WINDOW_FLAGS[0], str(config.window)]


_PROOF = {"SGLANG_EXPOSE_OWN_ENV_VARS": "1"}
"""Since 0.5.19 /server_info then lists the SGLANG_* variables that the scheduler really has."""


def _running(request: LaunchRequest) -> int:
    return request.max_concurrency or DEFAULT_RUNNING


def needs_topk_of_budget(config: Config) -> str | None:
    """For families whose topk is the budget itself: a smaller topk cannot be had."""
    if config.topk is not None and config.budget is not None and config.topk < config.budget:
        return (
            f"this build has no topk: it always considers as many candidates per depth as the budget ({config.budget}). "
            f"Ask for --ddtree-topk {config.budget}"
        )
    return None


def needs_block_of_budget(config: Config) -> str | None:
    """For families whose block size is budget + 1."""
    if config.block_size is not None and config.budget is not None and config.block_size != config.budget + 1:
        return f"this build ties the block size to the budget: {config.budget} + 1; leave out --ddtree-block-size"
    return None


def count(info: object) -> Value:
    """A count from JSON, unknown for everything else."""
    return info if isinstance(info, int) and not isinstance(info, bool) else UNKNOWN
