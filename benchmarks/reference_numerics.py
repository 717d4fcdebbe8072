"""How much a healthy bf16 embedded server disagrees with itself, by the suite's own measure.

    python benchmarks/reference_numerics.py [--prompts N] [--tokens 64,160] [--contexts 60,512]

Greedy answers to the suite's own prompts (all workload classes in turn): the plain server at concurrency 1 is the
reference; at concurrency 8 and 32, as a chain and as trees it answers again. Counted are the prompts whose first 64
(160) tokens differ, and every emitted token's gap to the argmax of the plain server's prompt pass. Engines run in this
process, no HTTP. Nothing here asserts: the figures are for docs/reference-server.md.
"""

from __future__ import annotations

import argparse
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pytest_ddtree.reference.blas import set_blas_threads
from pytest_ddtree.reference.checkpoint import load_draft, load_target
from pytest_ddtree.reference.engine import Engine
from pytest_ddtree.reference.hooks import Hooks
from pytest_ddtree.reference.request import LogprobOptions, Submission, Update
from pytest_ddtree.reference.runtime import build_runtime
from pytest_ddtree.reference.sampling import SamplingParams
from pytest_ddtree.reference.settings import EngineSettings, SpeculativeSettings
from pytest_ddtree.reference.tokenizer import Tokenizer
from pytest_ddtree.workload.prompts import PromptMaker
from pytest_ddtree.workload.texts import WORKLOADS

WEIGHTS = Path(__file__).resolve().parents[1] / "pytest_ddtree" / "reference" / "weights"
RUNS: dict[str, tuple[SpeculativeSettings | None, int]] = {
    "plain, concurrency 1": (None, 1),
    "plain, concurrency 8": (None, 8),
    "plain, concurrency 32": (None, 32),
    "chain, concurrency 1": (SpeculativeSettings("DFLASH", 8, 7, 1, None), 1),
    "b8-k4, concurrency 1": (SpeculativeSettings("DDTREE", 8, 8, 4, None), 1),
    "b8-k4, concurrency 8": (SpeculativeSettings("DDTREE", 8, 8, 4, None), 8),
    "b16-k4, concurrency 1": (SpeculativeSettings("DDTREE", 8, 16, 4, None), 1),
}


def start(speculative: SpeculativeSettings | None, numerics: str) -> Engine:
    settings = EngineSettings(
        context_length=4096,
        max_total_tokens=32768,
        page_size=1,
        max_running_requests=48,
        max_queued_requests=None,
        chunked_prefill_size=512,
        prefix_cache=True,
        random_seed=1,
        numerics=numerics,
        speculative=speculative,
        decode_log_interval=40,
    )
    draft = load_draft(WEIGHTS / "draft") if speculative else None
    runtime = build_runtime(settings, load_target(WEIGHTS / "target"), draft, Hooks())
    engine = Engine(runtime, Tokenizer(WEIGHTS / "target"), on_crash=lambda error: print("crash", error))
    engine.start()
    return engine


def ask(
    engine: Engine,
    prompts: Sequence[Sequence[int]],
    params: SamplingParams,
    concurrency: int,
    logprob_start: Sequence[int] | None = None,
) -> list[list[Update]]:
    """All updates of every prompt's answer."""
    answers: list[list[Update]] = [[] for _ in prompts]
    gate, done = threading.Semaphore(concurrency), threading.Semaphore(0)
    for index, prompt in enumerate(prompts):
        gate.acquire()

        def deliver(update: Update, index: int = index) -> None:
            answers[index].append(update)
            if update.finish:
                gate.release()
                done.release()

        wanted = None if logprob_start is None else LogprobOptions(logprob_start[index], 2)
        ids = np.asarray(prompt, dtype=np.int64)
        engine.submit(Submission(str(index), ids, params, seed=index, logprobs=wanted), deliver)
    for _ in prompts:
        done.acquire()
    return answers


def gaps(judge: Engine, prompts: Sequence[Sequence[int]], outputs: Sequence[Sequence[int]]) -> np.ndarray:
    """logprob(argmax) - logprob(token) of every output token, from the judge's prompt pass."""
    whole = [[*prompt, *output] for prompt, output in zip(prompts, outputs, strict=True)]
    one = SamplingParams(max_new_tokens=1, temperature=0.0)
    answers = ask(judge, whole, one, 1, [len(prompt) - 1 for prompt in prompts])
    found: list[float] = []
    for updates in answers:
        for update in updates:
            if update.logprobs is not None:
                pairs = zip(update.logprobs.input_tokens[1:], update.logprobs.input_top[1:], strict=True)
                found += [max(0.0, top[0][0] - token[0]) for token, top in pairs]
    return np.sort(np.array(found))[::-1]


@dataclass(frozen=True, slots=True)
class Row:
    differ: list[int]
    off: float
    largest: list[float]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--prompts", type=int, default=48)
    parser.add_argument("--tokens", default="64,160")
    parser.add_argument("--contexts", default="60,160,512")
    parser.add_argument("--numerics", default="bf16")
    parser.add_argument(
        "--runs", default=",".join(str(i) for i in range(len(RUNS))), help="which rows, by number"
    )
    args = parser.parse_args()
    set_blas_threads(1)
    lengths = [int(part) for part in args.tokens.split(",")]
    contexts = [int(part) for part in args.contexts.split(",")]
    makers = [PromptMaker(WEIGHTS / "target", workload=name) for name in WORKLOADS]
    able = [(maker, context) for context in contexts for maker in makers if maker.minimum <= context]
    prompts = [
        maker.make(context, i).ids for i in range(args.prompts) for maker, context in [able[i % len(able)]]
    ]
    params = SamplingParams(max_new_tokens=max(lengths), temperature=0.0, ignore_eos=True)
    judge = start(None, args.numerics)
    reference: list[list[int]] = []
    print(
        "| run |",
        " | ".join(f"differ in {n} tokens" for n in lengths),
        "| not argmax | largest gaps | accept length |",
    )
    print("|---|" + "---|" * (len(lengths) + 3))
    for number, (name, (speculative, concurrency)) in enumerate(RUNS.items()):
        if number and str(number) not in args.runs.split(","):
            continue
        engine = start(speculative, args.numerics) if speculative else judge
        answers = ask(engine, prompts, params, concurrency)
        outputs = [[token for update in updates for token in update.tokens] for updates in answers]
        reference = reference or outputs
        differ = [sum(a[:n] != b[:n] for a, b in zip(outputs, reference, strict=True)) for n in lengths]
        found = gaps(judge, prompts, outputs)
        steps = sum(updates[-1].verify_steps for updates in answers)
        accept = f"{sum(map(len, outputs)) / steps:.2f}" if steps else ""
        shares = " | ".join(f"{one} of {len(prompts)} ({100 * one / len(prompts):.0f} %)" for one in differ)
        largest = " ".join(f"{gap:.3f}" for gap in found[:3])
        print(f"| {name} | {shares} | {100 * np.mean(found > 0):.2f} % | {largest} | {accept} |", flush=True)
        if engine is not judge:
            engine.stop()
    judge.stop()


if __name__ == "__main__":
    main()
