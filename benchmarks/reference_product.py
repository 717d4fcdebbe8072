"""The full exactness product of the embedded server: every configuration against plain decoding, token for token.

    python benchmarks/reference_product.py --out product.jsonl [--prompts 200] [--tokens 128] [--only b8-k4]

One line per configuration is appended as soon as it is done; a run that was interrupted goes on where it stopped. A
prompt whose tokens differ is judged at its first difference: the gap between the plain model's best and the emitted
token given the same prefix. Below TIE it is a tie of float32 arithmetic and is listed, above it is corruption.
"""

from __future__ import annotations

import argparse
import inspect
import json
import os
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from pytest_ddtree.reference.args import DEFAULT_WEIGHTS
from pytest_ddtree.reference.blas import set_blas_threads
from pytest_ddtree.reference.checkpoint import load_draft, load_target
from pytest_ddtree.reference.engine import Engine
from pytest_ddtree.reference.hooks import Hooks
from pytest_ddtree.reference.request import LogprobOptions, Submission, Update
from pytest_ddtree.reference.runtime import build_runtime
from pytest_ddtree.reference.sampling import SamplingParams
from pytest_ddtree.reference.settings import EngineSettings, SpeculativeSettings
from pytest_ddtree.reference.tokenizer import Tokenizer

TIE = 1e-4
"""Nats; a larger gap is no rounding."""
BUDGETS, TOPKS, WINDOWS, CONCURRENCIES = (1, 3, 7, 8, 16, 32), (1, 4, 8), (None, 128), (1, 8)


def engine(speculative: SpeculativeSettings | None) -> Engine:
    settings = EngineSettings(
        context_length=4096, max_total_tokens=32768, page_size=1, max_running_requests=64, max_queued_requests=None,
        chunked_prefill_size=512, prefix_cache=True, random_seed=0, numerics="f32", speculative=speculative,
        decode_log_interval=10**9,
    )  # fmt: skip
    draft = load_draft(DEFAULT_WEIGHTS / "draft") if speculative else None
    runtime = build_runtime(settings, load_target(DEFAULT_WEIGHTS / "target"), draft, Hooks())
    started = Engine(runtime, Tokenizer(DEFAULT_WEIGHTS / "target"), on_crash=lambda error: os._exit(1))
    started.start()
    return started


def run(
    server: Engine, prompts: Sequence[Sequence[int]], params: SamplingParams, concurrency: int
) -> tuple[list[list[int]], int]:
    """(tokens of every prompt, verify steps altogether)."""
    answers: list[list[int]] = [[] for _ in prompts]
    steps = [0] * len(prompts)
    gate, done = threading.Semaphore(concurrency), threading.Semaphore(0)
    for index, prompt in enumerate(prompts):
        gate.acquire()

        def deliver(update: Update, index: int = index) -> None:
            answers[index].extend(update.tokens)
            if update.finish is not None:
                steps[index] = update.verify_steps
                gate.release()
                done.release()

        server.submit(
            Submission(str(index), np.asarray(prompt, dtype=np.int64), params, seed=index, every=0), deliver
        )
    for _ in prompts:
        done.acquire()
    return answers, sum(steps)


def gap(server: Engine, prefix: Sequence[int], token: int) -> float:
    """Best minus emitted log-probability behind ``prefix``, by the plain engine."""
    found: list[Update] = []
    event = threading.Event()

    def deliver(update: Update) -> None:
        found.append(update)
        if update.finish is not None:
            event.set()

    ids = np.asarray([*prefix, token], dtype=np.int64)
    options = LogprobOptions(len(prefix) - 1, 1)
    server.submit(
        Submission("gap", ids, SamplingParams(max_new_tokens=1, temperature=0.0), 0, options, 0), deliver
    )
    event.wait()
    result = found[-1].logprobs
    assert result is not None
    top, value = result.input_top[1], result.input_tokens[1][0]
    assert top is not None
    assert value is not None
    return float(top[0][0] or 0.0) - value


def make_prompts(count: int) -> list[list[int]]:
    """Pieces of 20 to 300 tokens of standard library modules."""
    tokenizer = Tokenizer(DEFAULT_WEIGHTS / "target")
    rng = np.random.default_rng(20)
    prompts: list[list[int]] = []
    for file in sorted(Path(inspect.__file__).parent.glob("*.py")):
        ids = tokenizer.encode(file.read_text(encoding="utf-8", errors="replace")[:12000])
        for _ in range(3):
            length = int(rng.integers(20, 300))
            if len(ids) > length + 1:
                begin = int(rng.integers(0, len(ids) - length))
                prompts.append(ids[begin : begin + length])
    rng.shuffle(prompts)  # type: ignore[arg-type]
    return prompts[:count]


def configurations() -> Iterator[tuple[str, SpeculativeSettings, int]]:
    for window in WINDOWS:
        suffix = "wnone" if window is None else f"w{window}"
        for concurrency in CONCURRENCIES:
            yield (
                f"chain-{suffix}-c{concurrency}",
                SpeculativeSettings("DFLASH", 8, 7, 1, window),
                concurrency,
            )
            for budget in BUDGETS:
                for topk in TOPKS:
                    settings = SpeculativeSettings("DDTREE", 8, budget, topk, window)
                    yield f"b{budget}-k{topk}-{suffix}-c{concurrency}", settings, concurrency


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--prompts", type=int, default=200)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--only", default="", help="run configurations whose name contains this")
    args = parser.parse_args()
    set_blas_threads(1)
    prompts = make_prompts(args.prompts)
    params = SamplingParams(max_new_tokens=args.tokens, temperature=0.0, ignore_eos=True)
    done = set()
    if args.out.exists():
        done = {json.loads(line)["config"] for line in args.out.read_text().splitlines()}
    plain = engine(None)
    truth, _ = run(plain, prompts, params, 8)
    for name, settings, concurrency in configurations():
        if name in done or args.only not in name:
            continue
        began = time.perf_counter()
        server = engine(settings)
        answers, steps = run(server, prompts, params, concurrency)
        server.stop()
        ties, corrupt = [], []
        for number, (prompt, ours, theirs) in enumerate(zip(prompts, answers, truth, strict=True)):
            if ours == theirs:
                continue
            at = next(index for index, (a, b) in enumerate(zip(ours, theirs, strict=True)) if a != b)
            size = gap(plain, [*prompt, *ours[:at]], ours[at])
            (ties if size < TIE else corrupt).append({"prompt": number, "position": at, "gap": size})
        record = {
            "config": name, "prompts": len(prompts), "tokens": sum(map(len, answers)), "exact": len(prompts) - len(ties)
            - len(corrupt), "ties": ties, "corrupt": corrupt, "accept": sum(map(len, answers)) / max(steps, 1),
            "seconds": time.perf_counter() - began,
        }  # fmt: skip
        with args.out.open("a") as stream:
            stream.write(json.dumps(record) + "\n")
        print(
            name,
            "exact",
            record["exact"],
            "ties",
            ties,
            "corrupt",
            corrupt,
            f"accept {record['accept']:.2f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
