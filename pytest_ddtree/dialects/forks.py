"""DDTree forks of SGLang: each spells budget and topk in its own way, and means its own by them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pytest_ddtree.dialects import serverinfo
from pytest_ddtree.dialects.base import LaunchRequest
from pytest_ddtree.dialects.effective import UNKNOWN, Value
from pytest_ddtree.dialects.sglang import SglangDialect, count, needs_block_of_budget, needs_topk_of_budget
from pytest_ddtree.grid import Config

BUDGET = "--speculative-ddtree-budget"
ENABLE = "--speculative-dflash-enable-ddtree"
TREE_VERIFY = "--speculative-dflash-tree-verify"
TREE_WIDTH = "--speculative-dflash-tree-width"
DRAFT_TOKENS = "--speculative-num-draft-tokens"
EAGLE_TOPK = "--speculative-eagle-topk"
_TREE_VERIFY_VARIABLE = "SGLANG_DFLASH_TREE_VERIFY"


class _BudgetFlag(SglangDialect):
    """Families A, B and C: algorithm DDTREE with a budget flag; the block stays what it is, the verify width is budget + 1."""

    def tree_arguments(self, config: Config, request: LaunchRequest) -> list[str]:
        args = ["--speculative-algorithm", "DDTREE", BUDGET, str(config.budget)]
        if config.block_size is not None:
            args += [DRAFT_TOKENS, str(config.block_size)]
        return args

    def unsupported_tree(self, config: Config, request: LaunchRequest) -> str | None:
        if request.build.flags and not request.build.has(BUDGET):
            return f"this build has no {BUDGET}; its tree flags: {request.build.listing('tree')}"
        return None

    def asked_values(self, config: Config, request: LaunchRequest) -> dict[str, Value]:
        values = super().asked_values(config, request)
        if config.budget is not None:
            values["verify_width"] = config.budget + 1
        return values

    def speculation(self, server_info: Mapping[str, Any]) -> dict[str, Value]:
        values = serverinfo.chain(server_info)
        if values.get("algorithm") != "DDTREE":
            return values
        budget = count(server_info.get("speculative_ddtree_budget"))
        block = values.get("block_size", UNKNOWN)
        if (
            budget is UNKNOWN
            and server_info.get("speculative_ddtree_budget", 0) is None
            and isinstance(block, int)
        ):
            # Unset, the budget is the block without its root.
            budget = block - 1
        values["budget"] = budget
        values["verify_width"] = budget + 1 if isinstance(budget, int) else UNKNOWN
        values["topk"] = self.topk_in_force(server_info, budget)
        return values

    def topk_in_force(self, server_info: Mapping[str, Any], budget: Value) -> Value:
        """Candidates per depth, as far as `/server_info` says."""
        del server_info, budget
        return UNKNOWN

    def speaks(self, server_info: Mapping[str, Any]) -> bool:
        return "speculative_ddtree_budget" in server_info and "speculative_ddtree_topk" not in server_info


class DialectA(_BudgetFlag):
    """topk is hard-coded: min(max(budget // (block - 1) + 1, 2), 6)."""

    name = "A"
    tested = False
    about = "fork with --speculative-ddtree-budget and a hard-coded topk (PR #27509)"
    overlap = False

    def unsupported_tree(self, config: Config, request: LaunchRequest) -> str | None:
        if (why := super().unsupported_tree(config, request)) is not None:
            return why
        size = config.block_size or request.block_size
        if size is None or size < 2 or config.budget is None:
            return None
        fixed = _hard_coded_topk(config.budget, size)
        if config.topk != fixed:
            return (
                f"this build has no topk: it takes {fixed} for budget {config.budget} and block size {size}. "
                f"Ask for --ddtree-topk {fixed}"
            )
        return None

    def topk_in_force(self, server_info: Mapping[str, Any], budget: Value) -> Value:
        block = serverinfo.draft_tokens(server_info)
        if isinstance(budget, int) and isinstance(block, int) and block > 1:
            return _hard_coded_topk(budget, block)
        return UNKNOWN


class DialectB(_BudgetFlag):
    """topk by environment variable; page size 1."""

    name = "B"
    tested = True
    about = "fork with --speculative-ddtree-budget and SGLANG_DDTREE_MAX_TOPK (PR #29907)"
    overlap = False
    page_size_one = True

    def tree_environment(self, config: Config) -> dict[str, str]:
        return {"SGLANG_DDTREE_MAX_TOPK": str(config.topk)}

    def unsupported_tree(self, config: Config, request: LaunchRequest) -> str | None:
        if (why := super().unsupported_tree(config, request)) is not None:
            return why
        user = (*request.server_args, *request.spec_args)
        if "--speculative-use-rejection-sampling" in user:
            return "this build refuses --speculative-use-rejection-sampling with a tree"
        return None

    def topk_in_force(self, server_info: Mapping[str, Any], budget: Value) -> Value:
        value = serverinfo.env_variables(server_info).get("SGLANG_DDTREE_MAX_TOPK")
        return int(value) if value is not None and value.isdigit() else UNKNOWN

    def speaks(self, server_info: Mapping[str, Any]) -> bool:
        variables = serverinfo.env_variables(server_info)
        return super().speaks(server_info) and "SGLANG_DDTREE_MAX_TOPK" in variables


class DialectC(_BudgetFlag):
    """topk is the budget; overlap stays on."""

    name = "C"
    tested = False
    about = "fork with --speculative-ddtree-budget, tree attention and pruning flags"
    overlap = True

    def unsupported_tree(self, config: Config, request: LaunchRequest) -> str | None:
        return super().unsupported_tree(config, request) or needs_topk_of_budget(config)

    def asked_values(self, config: Config, request: LaunchRequest) -> dict[str, Value]:
        return _topk_is_budget(super().asked_values(config, request), config)

    def topk_in_force(self, server_info: Mapping[str, Any], budget: Value) -> Value:
        del server_info
        return budget

    def speaks(self, server_info: Mapping[str, Any]) -> bool:
        return super().speaks(server_info) and "use_tree_attention" in server_info


class DialectD(SglangDialect):
    """A switch beside DFLASH. The draft tokens are budget + 1, and the block is tied to them; topk is the budget."""

    name = "D"
    tested = True
    about = "fork with --speculative-dflash-enable-ddtree (sglang-ddtree-dev)"
    overlap = False

    def tree_arguments(self, config: Config, request: LaunchRequest) -> list[str]:
        assert config.budget is not None
        return ["--speculative-algorithm", "DFLASH", ENABLE, DRAFT_TOKENS, str(config.budget + 1)]

    def unsupported_tree(self, config: Config, request: LaunchRequest) -> str | None:
        if request.build.flags and not request.build.has(ENABLE):
            return f"this build has no {ENABLE}; its tree flags: {request.build.listing('tree')}"
        return needs_topk_of_budget(config) or needs_block_of_budget(config)

    def asked_values(self, config: Config, request: LaunchRequest) -> dict[str, Value]:
        values = _topk_is_budget(super().asked_values(config, request), config)
        if config.budget is not None:
            values["block_size"] = values["verify_width"] = config.budget + 1
        return values

    def speculation(self, server_info: Mapping[str, Any]) -> dict[str, Value]:
        values = serverinfo.chain(server_info)
        block = values.get("block_size", UNKNOWN)
        if server_info.get("speculative_dflash_enable_ddtree") is True and isinstance(block, int):
            values["algorithm"] = "DDTREE"
            values["budget"] = values["topk"] = block - 1
        return values

    def speaks(self, server_info: Mapping[str, Any]) -> bool:
        return "speculative_dflash_enable_ddtree" in server_info


class _EagleTopk(SglangDialect):
    """Families E and F: the draft tokens are budget + 1, topk is EAGLE's flag, the block size has its own."""

    def asked_values(self, config: Config, request: LaunchRequest) -> dict[str, Value]:
        values = super().asked_values(config, request)
        if config.budget is not None:
            values["verify_width"] = config.budget + 1
        return values

    def _tree_on(self, server_info: Mapping[str, Any]) -> bool:
        raise NotImplementedError

    def speculation(self, server_info: Mapping[str, Any]) -> dict[str, Value]:
        values = serverinfo.chain(server_info)
        width = values.get("verify_width", UNKNOWN)
        if self._tree_on(server_info) and isinstance(width, int):
            values["algorithm"] = "DDTREE"
            values["budget"] = width - 1
            values["topk"] = count(server_info.get("speculative_eagle_topk"))
            values["block_size"] = count(server_info.get("speculative_dflash_block_size"))
        return values


class DialectE(_EagleTopk):
    """A tree by environment variable; overlap must be off."""

    name = "E"
    tested = False
    about = "fork with SGLANG_DFLASH_TREE_VERIFY"
    overlap = False

    def tree_arguments(self, config: Config, request: LaunchRequest) -> list[str]:
        assert config.budget is not None
        args = [
            "--speculative-algorithm",
            "DFLASH",
            DRAFT_TOKENS,
            str(config.budget + 1),
            EAGLE_TOPK,
            str(config.topk),
        ]
        size = config.block_size or request.block_size
        return args if size is None else [*args, "--speculative-dflash-block-size", str(size)]

    def tree_environment(self, config: Config) -> dict[str, str]:
        return {_TREE_VERIFY_VARIABLE: "1", "SGLANG_DFLASH_TREE_ALGO": "ddtree"}

    def unsupported_tree(self, config: Config, request: LaunchRequest) -> str | None:
        return None

    def _tree_on(self, server_info: Mapping[str, Any]) -> bool:
        return serverinfo.env_variables(server_info).get(_TREE_VERIFY_VARIABLE) == "1"

    def speaks(self, server_info: Mapping[str, Any]) -> bool:
        return _TREE_VERIFY_VARIABLE in serverinfo.env_variables(server_info)


class DialectF(_EagleTopk):
    """A tree by flag; topk 4, 8 or 16."""

    name = "F"
    tested = False
    about = "fork with --speculative-dflash-tree-verify (PR #31069)"

    def tree_arguments(self, config: Config, request: LaunchRequest) -> list[str]:
        assert config.budget is not None
        args = ["--speculative-algorithm", "DFLASH", TREE_VERIFY, DRAFT_TOKENS, str(config.budget + 1)]
        args += [EAGLE_TOPK, str(config.topk)]
        return (
            args
            if config.block_size is None
            else [*args, "--speculative-dflash-block-size", str(config.block_size)]
        )

    def unsupported_tree(self, config: Config, request: LaunchRequest) -> str | None:
        if config.topk not in {4, 8, 16}:
            return f"this build takes topk 4, 8 or 16, not {config.topk}"
        return None

    def _tree_on(self, server_info: Mapping[str, Any]) -> bool:
        return server_info.get("speculative_dflash_tree_verify") is True

    def speaks(self, server_info: Mapping[str, Any]) -> bool:
        return "speculative_dflash_tree_verify" in server_info


class DialectG(SglangDialect):
    """A beam tree of a fixed width per depth, cut to a number of nodes by environment variable; page size 1, greedy only."""

    name = "G"
    tested = False
    about = "fork with --speculative-dflash-tree-width (PR #36196)"
    page_size_one = True

    def tree_arguments(self, config: Config, request: LaunchRequest) -> list[str]:
        args = ["--speculative-algorithm", "DFLASH", TREE_WIDTH, str(config.topk)]
        return args if config.block_size is None else [*args, DRAFT_TOKENS, str(config.block_size)]

    def tree_environment(self, config: Config) -> dict[str, str]:
        return {"SGLANG_DFLASH_MAX_NUM_NODES": str(config.budget)}

    def unsupported_tree(self, config: Config, request: LaunchRequest) -> str | None:
        if config.topk is not None and config.topk < 2:
            return "this build needs topk 2 or more: with 1 it runs the chain"
        return None

    def asked_values(self, config: Config, request: LaunchRequest) -> dict[str, Value]:
        values = super().asked_values(config, request)
        size = config.block_size or request.block_size
        if (
            config.kind == "tree"
            and size is not None
            and config.budget is not None
            and config.topk is not None
        ):
            values["verify_width"] = min(config.budget, (size - 1) * config.topk) + 1
        return values

    def speculation(self, server_info: Mapping[str, Any]) -> dict[str, Value]:
        values = serverinfo.chain(server_info)
        width = count(server_info.get("speculative_dflash_tree_width"))
        if not isinstance(width, int) or width < 2:
            return values
        nodes = serverinfo.env_variables(server_info).get("SGLANG_DFLASH_MAX_NUM_NODES", "")
        budget = int(nodes) if nodes.isdigit() and int(nodes) > 0 else UNKNOWN
        block = values.get("block_size", UNKNOWN)
        values.update(algorithm="DDTREE", topk=width, budget=budget, verify_width=UNKNOWN)
        if isinstance(budget, int) and isinstance(block, int):
            values["verify_width"] = min(budget, (block - 1) * width) + 1
        return values

    def speaks(self, server_info: Mapping[str, Any]) -> bool:
        return "speculative_dflash_tree_width" in server_info


def _hard_coded_topk(budget: int, block_size: int) -> int:
    return min(max(budget // (block_size - 1) + 1, 2), 6)


def _topk_is_budget(values: dict[str, Value], config: Config) -> dict[str, Value]:
    if config.budget is not None:
        values["topk"] = config.budget
    return values
