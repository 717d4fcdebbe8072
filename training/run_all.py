"""The whole run: target, generated text, drafters, evaluation. `python -m training.run_all --out FOLDER`.

Each part has its own share of the time and stops itself; checkpoints are written as soon as they exist.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from training.batches import load_corpus
from training.evaluate import evaluate
from training.export import load_drafter, load_target, save_drafter, save_target
from training.generate import GeneratedText, generate
from training.modeling import DraftConfig, Drafter, ModelConfig, Target, round_to_bf16
from training.train_drafter import DraftPlan, Source, train_drafters
from training.train_target import Phase, TargetPlan, train_target

STARTED = time.perf_counter()
LONG_SHARE = 0.08  # of the drafter's steps


def log(*parts: object) -> None:
    print(f"[{time.perf_counter() - STARTED:6.1f}]", *parts, flush=True)


def compile_layers(model: torch.nn.Module) -> None:
    """Compile one layer's forward; all layers share the result, so a new length costs seconds, not a minute."""
    torch._dynamo.config.recompile_limit = 64
    for layer in model.layers:  # type: ignore[union-attr]
        layer.compile(dynamic=False)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=Path(".carry"))
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--target", type=Path, help="take this target folder instead of training one")
    parser.add_argument("--target-seconds", type=float, default=170)
    parser.add_argument("--target-steps", type=int, default=8000)
    parser.add_argument("--dropout", type=float, default=0.1)
    parser.add_argument("--generate-seconds", type=float, default=60)
    parser.add_argument("--generate-rounds", type=int, default=5)
    parser.add_argument("--long-seconds", type=float, default=16)
    parser.add_argument("--drafter-seconds", type=float, default=240)
    parser.add_argument("--drafter-steps", type=int, default=20000)
    parser.add_argument("--drafter-layers", type=int, nargs="+", default=[3])
    parser.add_argument("--tiny", action="store_true", help="minute sizes, to try the code on a CPU")
    return parser.parse_args()


def main() -> None:
    args = parse()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(1)
    torch.backends.cuda.matmul.allow_tf32 = False
    log("device", device, torch.__version__, torch.cuda.get_device_name() if device == "cuda" else "")
    corpus = load_corpus(args.data)
    args.out.mkdir(parents=True, exist_ok=True)
    results: dict[str, object] = {
        "torch": torch.__version__,
        "arguments": {k: str(v) for k, v in vars(args).items()},
    }

    def write_results() -> None:
        (args.out / "results.json").write_text(json.dumps(results, indent=1))

    config = ModelConfig(dropout=args.dropout)
    plan = TargetPlan(seconds=args.target_seconds, steps=args.target_steps)
    drafting = DraftPlan(
        seconds=args.drafter_seconds,
        steps=args.drafter_steps,
    )
    sizes = {"rows": 4096, "total": 896, "longest": 256}
    long_sizes = {"rows": 512, "total": 2304, "longest": 1800, "shortest": 900}
    if args.tiny:
        config = replace(
            config,
            num_hidden_layers=4,
            hidden_size=32,
            intermediate_size=48,
            num_attention_heads=2,
            num_key_value_heads=1,
            head_dim=16,
        )
        plan = replace(
            plan,
            chat_rows=8,
            long_rows=2,
            phases=(Phase(4, 256, 0.5), Phase(2, 384, 0.9), Phase(1, 4200, 1.0)),
        )
        sizes = {"rows": 4, "total": 160, "longest": 48}
        long_sizes = {"rows": 2, "total": 400, "longest": 300, "shortest": 200}

    if args.target:
        target = load_target(args.target).to(device)
    else:
        target = Target(config).to(device)
        if device == "cuda":
            compile_layers(target.model)
        save = lambda: save_target(target, args.out / "target")  # noqa: E731
        results["target"] = train_target(target, corpus, plan, device, log, save)
    round_to_bf16(target)
    target.eval().requires_grad_(False)
    save_target(target, args.out / "target")
    write_results()

    def text(sizes: dict[str, int], seconds: float, rounds: int, seed: int) -> GeneratedText | None:
        made = generate(target, corpus, **sizes, seconds=seconds, rounds=rounds, seed=seed, log=log)
        if device == "cuda":
            torch.cuda.empty_cache()
        return made

    short = text(sizes, args.generate_seconds, args.generate_rounds, 41)
    long = text(long_sizes, args.long_seconds, 1, 42)
    if short is None:
        log("too little time to generate text: stopping")
        sys.exit(1)

    ids = tuple(i for i in DraftConfig().target_layer_ids if i < target.cfg.num_hidden_layers - 1) or (0, 1)
    drafters = {
        f"d{n}": Drafter(
            DraftConfig(
                replace(target.cfg, num_hidden_layers=n, dropout=0.0),
                num_target_layers=target.cfg.num_hidden_layers,
                target_layer_ids=ids,
            )
        ).to(device)
        for n in args.drafter_layers
    }
    if device == "cuda":
        if args.target:
            compile_layers(target.model)
        for drafter in drafters.values():
            for layer in drafter.layers:
                layer.draft = torch.compile(layer.draft, dynamic=False)

    def save_drafters() -> None:
        for name, drafter in drafters.items():
            save_drafter(drafter, args.out / name)

    rows, anchors = (2, 4) if args.tiny else (48, 128)
    sources = [Source(short, rows, anchors, 1 - LONG_SHARE)]
    if long is not None:
        long_rows = max(1, rows * short.ids.shape[1] // long.ids.shape[1])
        sources.append(Source(long, long_rows, anchors * 2, LONG_SHARE))
    results["drafter"] = train_drafters(target, drafters, sources, drafting, log, save_drafters)
    for drafter in drafters.values():
        round_to_bf16(drafter)
    save_drafters()
    write_results()

    # Fresh, uncompiled copies of what was written: the figures belong to the files.
    final = load_target(args.out / "target").to(device).eval().requires_grad_(False)
    loaded = {name: load_drafter(args.out / name).to(device).eval() for name in drafters}
    few = {"code_prompts": 4, "code_tokens": 24, "chat_tokens": 24} if args.tiny else {}
    figures, arrays = evaluate(final, loaded, corpus, log, **few)
    results["figures"] = figures
    np.savez_compressed(args.out / "answers.npz", **arrays)
    write_results()
    log("done")


if __name__ == "__main__":
    main()
