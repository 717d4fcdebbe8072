"""From parsed arguments to engine settings: defaults that depend on the checkpoints, and their limits."""

from __future__ import annotations

import argparse
import logging
import secrets
from dataclasses import dataclass
from pathlib import Path

from .args import (
    DEFAULT_TOTAL_TOKENS,
    DEFAULT_WEIGHTS,
    PLAIN_RUNNING_REQUESTS,
    SPECULATIVE_RUNNING_REQUESTS,
    ArgumentError,
    timeout_from_environment,
)
from .chat import ChatError, ChatTemplate
from .checkpoint import (
    CheckpointError,
    DraftCheckpoint,
    TargetCheckpoint,
    check_pair,
    load_draft,
    load_target,
)
from .settings import EngineSettings, SpeculativeSettings
from .tokenizer import Tokenizer

log = logging.getLogger("ddtree.reference")


@dataclass(frozen=True, slots=True)
class Loaded:
    target: TargetCheckpoint
    draft: DraftCheckpoint | None
    settings: EngineSettings
    tokenizer: Tokenizer
    chat_template: ChatTemplate | None


def load(args: argparse.Namespace) -> Loaded:
    """Read the checkpoints, the tokenizer and its chat template, and resolve the settings.

    Raises:
        CheckpointError: a checkpoint that cannot be run.
        ArgumentError: a value that does not fit the checkpoints.
    """
    target = load_target(args.model_path)
    draft: DraftCheckpoint | None = None
    speculative: SpeculativeSettings | None = None
    if args.speculative_algorithm is not None:
        draft = load_draft(args.speculative_draft_model_path or _default_draft(args))
        check_pair(target.config, draft.config)
        speculative = _speculative(args, target, draft)
    context = args.context_length or target.config.max_positions
    if context > target.config.max_positions:
        raise ArgumentError(
            f"--context-length {context} is longer than the checkpoint's {target.config.max_positions} positions."
        )
    total = args.max_total_tokens or DEFAULT_TOTAL_TOKENS
    step = speculative.width if speculative is not None else 1
    if total - total % args.page_size < step + 2:
        raise ArgumentError(
            f"--max-total-tokens {total} is too few: a request of two tokens and the {step} of one step must fit into "
            f"whole pages of {args.page_size}."
        )
    running = args.max_running_requests
    if running is None:
        running = PLAIN_RUNNING_REQUESTS
        if speculative is not None:
            running = SPECULATIVE_RUNNING_REQUESTS
            log.info(
                "Max running requests is reset to %d for speculative decoding. "
                "You can override this by explicitly setting --max-running-requests.",
                running,
            )
    seed = args.random_seed if args.random_seed is not None else secrets.randbelow(2**30)
    settings = EngineSettings(
        context_length=context,
        max_total_tokens=total,
        page_size=args.page_size,
        max_running_requests=running,
        max_queued_requests=args.max_queued_requests,
        chunked_prefill_size=args.chunked_prefill_size,
        prefix_cache=not args.disable_radix_cache,
        random_seed=seed,
        numerics=args.numerics,
        speculative=speculative,
        decode_log_interval=args.decode_log_interval,
        waiting_timeout=timeout_from_environment("SGLANG_REQ_WAITING_TIMEOUT"),
        running_timeout=timeout_from_environment("SGLANG_REQ_RUNNING_TIMEOUT"),
    )
    tokenizer = Tokenizer(args.tokenizer_path or args.model_path)
    return Loaded(target, draft, settings, tokenizer, _chat_template(tokenizer))


def _chat_template(tokenizer: Tokenizer) -> ChatTemplate | None:
    try:
        return ChatTemplate(tokenizer.chat_template) if tokenizer.chat_template else None
    except ChatError as error:
        raise CheckpointError(str(error)) from None


def _default_draft(args: argparse.Namespace) -> Path:
    """The drafter that belongs to the default target; any other target needs its own, named."""
    if args.model_path != DEFAULT_WEIGHTS / "target":
        raise ArgumentError(
            f"{args.speculative_algorithm} speculative decoding requires setting --speculative-draft-model-path."
        )
    return DEFAULT_WEIGHTS / "draft"


def _speculative(
    args: argparse.Namespace, target: TargetCheckpoint, draft: DraftCheckpoint
) -> SpeculativeSettings:
    block = args.speculative_dflash_block_size or args.speculative_num_draft_tokens or draft.config.block_size
    if block != draft.config.block_size:
        log.warning(
            "DFLASH block size mismatch: using speculative_num_draft_tokens=%d but draft config block_size=%d.",
            block,
            draft.config.block_size,
        )
    window = args.speculative_draft_window_size
    if window is not None and window < block:
        raise ArgumentError(
            "--speculative-draft-window-size must be >= --speculative-num-draft-tokens (block_size). "
            f"window_size={window}, block_size={block}"
        )
    if args.speculative_ddtree_topk > target.config.vocab_size:
        raise ArgumentError(
            f"--speculative-ddtree-topk {args.speculative_ddtree_topk} is more than the vocabulary of "
            f"{target.config.vocab_size} tokens."
        )
    tree = args.speculative_algorithm == "DDTREE"
    budget = args.speculative_ddtree_budget if args.speculative_ddtree_budget is not None else block - 1
    return SpeculativeSettings(
        algorithm=args.speculative_algorithm,
        block_size=block,
        budget=budget if tree else block - 1,
        topk=args.speculative_ddtree_topk if tree else 1,
        window=window,
    )
