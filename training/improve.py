"""Continue the shipped drafter on what the target answers to the suite's own prompts, up to 9,216 positions.

Two processes that share a folder, so that one compiles while the other decodes:
`python -m training.improve text --work W` writes W/text.pt, `python -m training.improve drafter --work W` waits
for it, trains until its time is over and writes W/d3, W/d5 (the same drafter with two more layers) and
W/figures.json again and again. `python -m training.improve moe --work W` trains the target's twin with experts.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from training.batches import Corpus, load_corpus
from training.export import load_drafter, load_target, save_drafter, save_moe
from training.generate import Decoder, GeneratedText, corpus_text, generate, joined, temperatures
from training.modeling import Drafter, ModelConfig, Target, deepened, round_to_bf16
from training.run_all import compile_layers
from training.train_drafter import DraftPlan, LossRule, Source, train_drafters
from training.train_target import Phase, TargetPlan, train_target

WEIGHTS = Path(__file__).resolve().parent.parent / "pytest_ddtree" / "reference" / "weights"
DEEPER = (0, 1, 1, 2, 2)
NEW_TOKENS = 256
WIDTHS = (896, 2304, 9216)
# (kind of text, width, rows a step, anchors a row, share of the steps)
STEPS = (
    ("own", 896, 48, 128, 0.35),
    ("workload", 896, 48, 128, 0.27),
    ("workload", 2304, 18, 256, 0.12),
    ("workload", 9216, 4, 256, 0.10),
    ("corpus", 9216, 4, 384, 0.16),
)
MOE = ModelConfig(num_hidden_layers=8, intermediate_size=128, experts=8, dropout=0.1)

Log = Callable[..., None]


def clock(name: str) -> Log:
    started = time.perf_counter()
    return lambda *parts: print(f"[{name} {time.perf_counter() - started:6.1f}]", *parts, flush=True)


def answers(
    target: Target, prompts: np.ndarray, passes: int, deadline: float, rng: np.random.Generator
) -> list[GeneratedText]:
    """Texts that the target writes behind prompts [rows, length]: once greedily, then with sampled stretches."""
    rows, length = prompts.shape
    total = length + NEW_TOKENS
    device = target.cos.device
    decoder = Decoder(target, rows, total, torch.bfloat16 if device.type == "cuda" else torch.float32)
    asked = torch.from_numpy(prompts.astype(np.int64)).to(device)
    start = torch.full((rows,), length, device=device)
    made = []
    for number in range(passes):
        heat = np.zeros((rows, total), dtype=np.float32)
        if number:
            heat[:, length:] = temperatures(rows, NEW_TOKENS, rng)
        out, filled = decoder.run(asked, start, torch.from_numpy(heat).to(device), total, deadline)
        if filled < total:
            break
        made.append(GeneratedText(out.short(), start, torch.full_like(start, total)))
    return made


def write_text(args: argparse.Namespace, log: Log) -> None:
    started = time.perf_counter()
    target = load_target(args.target).to(args.device).eval().requires_grad_(False)
    corpus = load_corpus(args.data)
    sizes = (
        {"rows": 4, "total": 160, "longest": 48}
        if args.tiny
        else {"rows": 4096, "total": 896, "longest": 256}
    )
    own = generate(target, corpus, **sizes, seconds=args.seconds * 0.45, rounds=args.rounds, seed=51, log=log)
    made: dict[tuple[str, int], list[GeneratedText]] = {("own", 896): [own] if own else []}
    with np.load(args.data / "workload.npz") as stored:
        prompts = {int(name.removeprefix("length")): stored[name] for name in stored.files}
    if args.tiny:
        prompts = {length: rows[:2] for length, rows in prompts.items() if length in (60, 512, 1024)}
    rng = np.random.default_rng(52)
    deadline = started + args.seconds
    # The lengths that the suite's profiles ask for come first: the time may not suffice for all.
    for length in sorted(prompts, key=lambda n: (n not in (60, 512, 2048, 1024, 8192, 4096), n)):
        if time.perf_counter() > deadline:
            break
        width = next(w for w in WIDTHS if length + NEW_TOKENS <= w)
        passes = 2 if args.tiny or length > 2048 else 5 if length <= 640 else 4
        made.setdefault(("workload", width), []).extend(
            answers(target, prompts[length], passes, deadline, rng)
        )
        log(f"answers to {len(prompts[length])} prompts of {length} tokens")
        if args.device == "cuda":
            torch.cuda.empty_cache()
    texts = {key: joined(parts, key[1]) for key, parts in made.items() if parts}
    log({key: tuple(text.ids.shape) for key, text in texts.items()})
    raw = {key: (text.ids.cpu(), text.start.cpu(), text.end.cpu()) for key, text in texts.items()}
    torch.save(raw, args.work / "text.part")
    (args.work / "text.part").rename(args.work / "text.pt")


def read_text(args: argparse.Namespace) -> dict[tuple[str, int], GeneratedText]:
    """Waits for `write_text`, for as long as this process may run."""
    limit = time.perf_counter() + args.seconds
    while not (args.work / "text.pt").exists():
        if time.perf_counter() > limit:
            raise SystemExit("no text was written in time")
        time.sleep(0.5)
    raw = torch.load(args.work / "text.pt", weights_only=True)
    return {key: GeneratedText(*(part.to(args.device) for part in parts)) for key, parts in raw.items()}


def blank(rows: int, width: int, device: str) -> GeneratedText:
    """Text of the right shape, to compile with."""
    start = torch.full((rows,), width // 2, device=device)
    return GeneratedText(
        torch.zeros((rows, width), dtype=torch.short, device=device), start, torch.full_like(start, width)
    )


def train_drafter(args: argparse.Namespace, log: Log) -> None:
    started = time.perf_counter()
    target = load_target(args.target).to(args.device).eval().requires_grad_(False)
    corpus: Corpus = load_corpus(args.data)
    shipped = load_drafter(args.drafter).to(args.device)
    drafters: dict[str, Drafter] = {"d3": shipped, "d5": deepened(shipped, DEEPER)}
    drafters = {name: drafter for name, drafter in drafters.items() if name in args.keep}
    if args.device == "cuda":
        compile_layers(target.model)
        for drafter in drafters.values():
            for layer in drafter.layers:
                layer.draft = torch.compile(layer.draft, dynamic=False)
    steps = (
        [(k, w, 2, 4, s) for k, w, _, _, s in STEPS if w < 9216 or not args.tiny]
        if args.tiny
        else list(STEPS)
    )
    plan = DraftPlan(seconds=1e-9, matrix_lr=args.rate, other_lr=args.rate * 0.15, window_share=0.4)
    rule = LossRule(soft=args.soft)
    shapes = {
        width: Source(blank(rows, width, args.device), rows, anchors, 1.0)
        for _, width, rows, anchors, _ in steps
    }
    shapes |= {
        -width: Source(blank(rows, width, args.device), rows, anchors, 1.0)
        for kind, width, rows, anchors, _ in steps
        if kind == "corpus"
    }
    train_drafters(target, drafters, list(shapes.values()), plan, log, lambda: None, rule)
    texts = {("corpus", 9216): corpus_text(corpus, 8 if args.tiny else 500, 9216, target.cos.device)}
    log("compiled; waiting for the text")
    texts |= read_text(args)
    log({key: tuple(text.ids.shape) for key, text in texts.items()})
    sources = [
        Source(texts[kind, width], rows, anchors, share)
        for kind, width, rows, anchors, share in steps
        if (kind, width) in texts
    ]

    def save() -> None:
        for name, drafter in drafters.items():
            save_drafter(drafter, args.work / name)

    left = args.seconds - (time.perf_counter() - started)
    figures = train_drafters(target, drafters, sources, replace(plan, seconds=left), log, save, rule)
    for drafter in drafters.values():
        round_to_bf16(drafter)
    save()
    figures |= {
        "torch": torch.__version__,
        "arguments": {key: str(value) for key, value in vars(args).items()},
        "text_rows": {f"{kind} {width}": len(text.ids) for (kind, width), text in texts.items()},
    }
    (args.work / "figures.json").write_text(json.dumps(figures, indent=1))


def train_moe(args: argparse.Namespace, log: Log) -> None:
    corpus = load_corpus(args.data)
    config = replace(MOE, num_hidden_layers=2, hidden_size=32, intermediate_size=16) if args.tiny else MOE
    model = Target(config).to(args.device)
    plan = TargetPlan(seconds=args.seconds, long_rows=200, chat_rows=2000)
    if args.tiny:
        plan = replace(
            plan, chat_rows=8, long_rows=2, steps=4, phases=(Phase(2, 256, 0.5), Phase(2, 384, 1.0))
        )
    if args.device == "cuda":
        compile_layers(model.model)
    figures = train_target(model, corpus, plan, args.device, log, lambda: save_moe(model, args.work / "moe"))
    round_to_bf16(model)
    save_moe(model, args.work / "moe")
    figures["imbalance"] = float(model.imbalance() or 0.0)
    (args.work / "moe" / "figures.json").write_text(json.dumps(figures, indent=1))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("part", choices=("text", "drafter", "moe"))
    parser.add_argument("--work", type=Path, required=True, help="folder that the processes share")
    parser.add_argument("--data", type=Path, default=Path(".carry"))
    parser.add_argument("--target", type=Path, default=WEIGHTS / "target")
    parser.add_argument("--drafter", type=Path, default=WEIGHTS / "draft")
    parser.add_argument("--seconds", type=float, default=420, help="of this process (moe: of its training)")
    parser.add_argument("--rounds", type=int, default=2, help="of text from code and problems")
    parser.add_argument("--rate", type=float, default=0.01, help="peak rate for the drafter's matrices")
    parser.add_argument(
        "--soft", type=float, default=0.5, help="part of the target's distribution in the loss"
    )
    parser.add_argument("--keep", nargs="+", default=["d3", "d5"], help="drafters to train")
    parser.add_argument("--tiny", action="store_true", help="minute sizes, to try the code on a CPU")
    args = parser.parse_args()
    args.device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(3)
    args.work.mkdir(parents=True, exist_ok=True)
    log = clock(args.part)
    log("device", args.device, torch.__version__)
    {"text": write_text, "drafter": train_drafter, "moe": train_moe}[args.part](args, log)
    log("done")


if __name__ == "__main__":
    main()
