"""Train the target: next-token cross-entropy on source code and conversations, in three phases of length."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from training.batches import Corpus, training_rows
from training.modeling import Target
from training.optim import Optimizer, schedule

Log = Callable[..., None]


@dataclass(frozen=True, slots=True)
class Phase:
    """A part of the run: rows a step, positions a row, and where it ends as a share of the whole run."""

    rows: int
    length: int
    until: float


@dataclass(frozen=True, slots=True)
class TargetPlan:
    """One training run. It stops after `steps` or after `seconds`, whichever comes first, and the learning rate
    follows the larger of the two shares, so that a run cut short still ends with a small one."""

    seconds: float = 170.0
    steps: int = 8000
    matrix_lr: float = 0.02
    other_lr: float = 3e-3
    decay: float = 0.03
    chat_share: float = 0.15
    phases: tuple[Phase, ...] = (Phase(64, 1024, 0.75), Phase(32, 2048, 0.88), Phase(8, 9216, 1.0))
    long_rows: int = 800
    chat_rows: int = 6000
    balance: float = 0.01


def token_loss(hidden: Tensor, weight: Tensor, wanted: Tensor) -> Tensor:
    """Mean cross-entropy of hidden [N, H] against wanted [N]."""
    return F.cross_entropy(F.linear(hidden, weight).float(), wanted)


def crops(stream: Tensor, rows: int, length: int, generator: torch.Generator) -> Tensor:
    """[rows, length] pieces of a 1-D stream at random starts."""
    start = torch.randint(0, stream.numel() - length, (rows, 1), generator=generator, device=stream.device)
    return stream[start + torch.arange(length, device=stream.device)].long()


@torch.no_grad()
def mean_loss(model: Target, stream: Tensor, length: int, rows: int = 32) -> float:
    """Mean loss in nats over the stream cut into pieces of `length`, as many full batches as it holds (another
    batch shape would be compiled anew)."""
    count = (stream.numel() - 1) // length // rows * rows
    total, seen = 0.0, 0
    for first in range(0, count, rows):
        index = torch.arange(first, first + rows, device=stream.device)[:, None] * length
        ids = stream[index + torch.arange(length + 1, device=stream.device)].long()
        hidden, _ = model(ids[:, :-1])
        loss = token_loss(hidden.flatten(0, 1), model.model.embed_tokens.weight, ids[:, 1:].flatten())
        total, seen = total + float(loss) * len(index), seen + len(index)
    return total / seen


def train_target(
    model: Target, corpus: Corpus, plan: TargetPlan, device: str, log: Log, checkpoint: Callable[[], None]
) -> dict[str, float]:
    """Train in place. Returns the figures of the run."""
    rng = np.random.default_rng(11)
    generator = torch.Generator(device).manual_seed(12)
    stream = torch.from_numpy(corpus.train.astype(np.int32)).to(device)
    held_out = torch.from_numpy(corpus.held_out.astype(np.int32)).to(device)
    rows = {
        phase.length: torch.from_numpy(
            training_rows(
                corpus,
                plan.long_rows if phase.length > 4096 else plan.chat_rows * 1024 // max(phase.length, 1024),
                phase.length + 1,
                rng,
            ).astype(np.int32)
        ).to(device)
        for phase in plan.phases
    }
    log("rows built", {length: tuple(r.shape) for length, r in rows.items()})
    optimizer = Optimizer(model, matrix_lr=plan.matrix_lr, other_lr=plan.other_lr, decay=plan.decay)
    loss_of = torch.compile(token_loss) if device == "cuda" else token_loss

    def draw(phase: Phase) -> Tensor:
        chats = max(1, round(phase.rows * plan.chat_share)) if phase.length <= 4096 else phase.rows * 3 // 4
        source = rows[phase.length]
        pick = torch.randint(0, len(source), (chats,), generator=generator, device=device)
        return torch.cat(
            [source[pick].long(), crops(stream, phase.rows - chats, phase.length + 1, generator)]
        )

    def backward(batch: Tensor) -> Tensor:
        with torch.autocast(device, dtype=torch.bfloat16):
            hidden, _ = model(batch[:, :-1].contiguous())
            loss = loss_of(hidden.flatten(0, 1), model.model.embed_tokens.weight, batch[:, 1:].flatten())
        imbalance = model.imbalance()
        (loss if imbalance is None else loss + plan.balance * imbalance).backward()
        return loss.detach()

    model.train()
    for phase in plan.phases:  # compile every shape before the clock starts
        backward(draw(phase))
        model.zero_grad(set_to_none=True)
        log("compiled length", phase.length)
    started, step, tokens, last = time.perf_counter(), 0, 0, 0.0
    running = torch.zeros((), device=device)
    since = 0
    while True:
        elapsed = time.perf_counter() - started
        share = max(step / plan.steps, elapsed / plan.seconds)
        if share >= 1.0:
            break
        phase = next(p for p in plan.phases if share < p.until)
        batch = draw(phase)
        running += backward(batch)
        optimizer.step(schedule(share))
        since, step, tokens = since + 1, step + 1, tokens + batch.numel()
        if elapsed - last > 12:  # reading the loss waits for the device, so seldom
            last = elapsed
            model.eval()
            with torch.autocast(device, dtype=torch.bfloat16):
                held = mean_loss(model, held_out, 1024)
            model.train()
            log(
                f"target step {step} share {share:.2f} length {phase.length} loss {float(running) / since:.3f} "
                f"held-out {held:.3f} tokens {tokens / 1e6:.0f}M {tokens / elapsed / 1e6:.2f}M/s"
            )
            running.zero_()
            since = 0
            checkpoint()
    model.eval()
    with torch.autocast(device, dtype=torch.bfloat16):
        figures = {
            "held_out_loss": mean_loss(model, held_out, 1024),
            "train_loss": mean_loss(model, stream[:400_000], 1024),
            "steps": step,
            "tokens": tokens,
            "seconds": time.perf_counter() - started,
        }
    log("target done", figures)
    return figures
