"""The command line: SGLang's flag names, checked, resolved against the checkpoints."""

from __future__ import annotations

import argparse
import math
import os
from collections.abc import Sequence
from pathlib import Path

from .reasoning import PARSERS

DEFAULT_WEIGHTS = Path(__file__).parent / "weights"
DEFAULT_TOTAL_TOKENS = 65536
SPECULATIVE_RUNNING_REQUESTS = 48
PLAIN_RUNNING_REQUESTS = 256


class ArgumentError(Exception):
    """A command line that cannot be served; the text names the flag and what is allowed."""


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m pytest_ddtree.reference",
        description="A small DFlash/DDTree server in NumPy behind SGLang's HTTP interface.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--model-path", "--model", type=Path, default=DEFAULT_WEIGHTS / "target", help="target checkpoint")
    add("--tokenizer-path", type=Path, default=None, help="default: the target checkpoint")
    add("--host", default="127.0.0.1")
    add("--port", type=int, default=30000, help="0 lets the system choose; the log names it")
    add("--served-model-name", default=None)
    add("--api-key", default=None)
    add("--random-seed", type=int, default=None)
    add("--log-level", default="info", choices=["debug", "info", "warning", "error"])
    memory = parser.add_argument_group("memory and scheduling")
    add = memory.add_argument
    add("--context-length", type=int, default=None, help="default: the checkpoint's max_position_embeddings")
    add(
        "--max-total-tokens", type=int, default=None, help=f"key-value slots (default {DEFAULT_TOTAL_TOKENS})"
    )
    add("--mem-fraction-static", type=float, default=None, help="accepted and recorded, without effect")
    add("--max-running-requests", type=int, default=None)
    add("--max-queued-requests", type=int, default=None)
    add("--chunked-prefill-size", type=int, default=512)
    add("--page-size", type=int, default=1)
    add("--disable-radix-cache", action="store_true")
    add("--disable-overlap-schedule", action="store_true", help="accepted and recorded, without effect")
    add("--disable-cuda-graph", action="store_true", help="accepted and recorded, without effect")
    add("--attention-backend", default="numpy", help="accepted and recorded, without effect")
    add("--enable-deterministic-inference", action="store_true", help="accepted and recorded, without effect")
    speculative = parser.add_argument_group("speculative decoding")
    add = speculative.add_argument
    add("--speculative-algorithm", type=str.upper, choices=["DFLASH", "DDTREE"], default=None)
    add("--speculative-draft-model-path", "--speculative-draft-model", type=Path, default=None)
    add("--speculative-ddtree-budget", type=int, default=None, help="draft nodes per step, the root excluded")
    add("--speculative-ddtree-topk", type=int, default=4, help="most candidates per draft depth")
    add("--speculative-dflash-block-size", type=int, default=None)
    add("--speculative-num-draft-tokens", type=int, default=None, help="the block size under another name")
    add("--speculative-draft-window-size", type=int, default=None, help="in tokens; default: full context")
    output = parser.add_argument_group("output")
    add = output.add_argument
    add("--stream-interval", type=int, default=1)
    add("--incremental-streaming-output", action="store_true")
    add("--reasoning-parser", choices=sorted(PARSERS), default=None)
    add("--enable-cache-report", action="store_true")
    add("--enable-metrics", action="store_true")
    add("--decode-log-interval", type=int, default=40)
    special = parser.add_argument_group("of this server alone")
    add = special.add_argument
    add("--numerics", choices=["f32", "bf16"], default="f32")
    add(
        "--plant",
        action="append",
        default=[],
        metavar="NAME[:ARG][@RATE]",
        help="plant a fault; may be repeated; 'list' shows them all",
    )
    add(
        "--plant-switch",
        action="store_true",
        help="POST /plant exchanges the planted faults of the running server: for tests of tests",
    )
    add(
        "--check",
        action="store_true",
        help="say whether the other arguments can be served (exit code 0, or 2 with the reason), and serve nothing",
    )
    add(
        "--startup-delay",
        type=float,
        default=0.0,
        help="seconds to wait after loading, for tests of readiness",
    )
    return parser


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Parse and check what can be checked without the checkpoints.

    Raises:
        ArgumentError: a value outside its range.
        SystemExit: argparse's own errors and --help.
    """
    args = build_parser().parse_args(argv)
    for name, least in (
        ("context_length", 1),
        ("max_total_tokens", 1),
        ("max_running_requests", 1),
        ("max_queued_requests", 0),
        ("chunked_prefill_size", 1),
        ("page_size", 1),
        ("speculative_ddtree_budget", 1),
        ("speculative_ddtree_topk", 1),
        ("speculative_dflash_block_size", 2),
        ("speculative_num_draft_tokens", 2),
        ("speculative_draft_window_size", 1),
        ("stream_interval", 1),
        ("decode_log_interval", 1),
    ):
        value = getattr(args, name)
        if value is not None and value < least:
            raise ArgumentError(f"--{name.replace('_', '-')} must be at least {least}, got {value}.")
    if not 0 <= args.port <= 65535:
        raise ArgumentError(f"--port must be between 0 and 65535, got {args.port}.")
    if not 0 <= args.startup_delay < math.inf:
        raise ArgumentError(
            f"--startup-delay must be a number of seconds, 0 or more, got {args.startup_delay}."
        )
    _check_speculative(args)
    return args


def _check_speculative(args: argparse.Namespace) -> None:
    if args.speculative_algorithm is None:
        if args.speculative_ddtree_budget is not None:
            raise ArgumentError("--speculative-ddtree-budget needs --speculative-algorithm DDTREE.")
        return
    if args.speculative_algorithm == "DFLASH" and args.speculative_ddtree_budget is not None:
        raise ArgumentError(
            "--speculative-ddtree-budget has no meaning for DFLASH; use --speculative-algorithm DDTREE."
        )
    block, draft_tokens = args.speculative_dflash_block_size, args.speculative_num_draft_tokens
    if block is not None and draft_tokens is not None and block != draft_tokens:
        raise ArgumentError(
            f"--speculative-num-draft-tokens ({draft_tokens}) and --speculative-dflash-block-size ({block}) are two "
            "names of the block size and must agree."
        )


def timeout_from_environment(name: str) -> float | None:
    """A number of seconds, or None when unset or negative (SGLang's convention)."""
    text = os.environ.get(name)
    if text is None:
        return None
    try:
        value = float(text)
    except ValueError:
        raise ArgumentError(f"{name} must be a number of seconds, got {text!r}.") from None
    return value if value >= 0 else None
