"""The embedded server: SGLang's flag names, plus budget and topk of its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pytest_ddtree.dialects import serverinfo
from pytest_ddtree.dialects.base import DEFAULT_RUNNING, Dialect, Launch, LaunchRequest, given
from pytest_ddtree.dialects.effective import UNKNOWN, Value
from pytest_ddtree.grid import Config, max_tree_nodes


class ReferenceDialect(Dialect):
    """`python -m pytest_ddtree.reference`: verify width = min(budget, nodes that topk and block size allow) + 1."""

    name = "reference"
    tested = True
    about = "the embedded server, python -m pytest_ddtree.reference"

    def arguments(self, config: Config, request: LaunchRequest) -> Launch:
        user = (*request.server_args, *self._own(config, request))
        args: list[str] = []
        if not given(user, "--max-running-requests"):
            # Both servers of a comparison run as many at once: the speculative one would silently take 48.
            args += ["--max-running-requests", str(request.max_concurrency or DEFAULT_RUNNING)]
        if not config.speculative:
            return Launch(tuple(args))
        args += ["--speculative-algorithm", "DDTREE" if config.kind == "tree" else "DFLASH"]
        if request.draft_model is not None:
            args += ["--speculative-draft-model-path", request.draft_model]
        if config.kind == "tree":
            args += [
                "--speculative-ddtree-budget",
                str(config.budget),
                "--speculative-ddtree-topk",
                str(config.topk),
            ]
        if config.window is not None:
            args += ["--speculative-draft-window-size", str(config.window)]
        if config.block_size is not None:
            args += ["--speculative-dflash-block-size", str(config.block_size)]
        return Launch(tuple(args))

    def asked_values(self, config: Config, request: LaunchRequest) -> dict[str, Value]:
        values = super().asked_values(config, request)
        values.setdefault("max_running_requests", request.max_concurrency or DEFAULT_RUNNING)
        return values

    def speculation(self, server_info: Mapping[str, Any]) -> dict[str, Value]:
        values = serverinfo.chain(server_info)
        if values.get("algorithm") != "DDTREE":
            return values
        budget, topk = (
            server_info.get("speculative_ddtree_budget"),
            server_info.get("speculative_ddtree_topk"),
        )
        block = values.get("block_size")
        values["budget"] = budget if isinstance(budget, int) else UNKNOWN
        values["topk"] = topk if isinstance(topk, int) else UNKNOWN
        values["verify_width"] = UNKNOWN
        if isinstance(budget, int) and isinstance(topk, int) and isinstance(block, int):
            values["verify_width"] = max_tree_nodes(budget, topk, block) + 1
        return values

    def log_values(self, seen: Mapping[str, Value]) -> dict[str, Value]:
        values = super().log_values(seen)
        nodes = seen.get("raw_max_tree_nodes", UNKNOWN)
        if isinstance(nodes, int):
            # The root is one of the nodes in this line.
            values["verify_width"] = nodes
        return values

    def speaks(self, server_info: Mapping[str, Any]) -> bool:
        return (
            server_info.get("server") == "pytest_ddtree.reference" or "speculative_ddtree_topk" in server_info
        )
